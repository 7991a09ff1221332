"""A completion is spoken of when it is on its way, and no sooner."""

import queue
import socket

from jigsaw_jax.records import FinishReason, Sample, SampleId, Segment
from jigsaw_jax.runtime.lines.depot import Depot, Key
from jigsaw_jax.runtime.lines.porter import Porter
from jigsaw_jax.runtime.sample_bytes import read_sample
from tests.runtime.lines.pairs import HOST
from tests.waiting import wait_until


def sample(index):
    segment = Segment(tokens=(index,), logprobs=(-1.0,), versions=(0,))
    return Sample(
        id=SampleId("u", 0, index),
        attempt=0,
        segments=(segment,),
        finish_reason=FinishReason.STOP,
    )


def started():
    failures, told = [], queue.SimpleQueue()
    return Porter("a/1", "token", failures.append), told, failures


def test_completions_reach_the_depot_under_the_numbers_that_are_told():
    porter, told, failures = started()
    depot = Depot(HOST, "token", failures.append)
    porter.to(depot.address)
    for index in range(5):
        porter.carry(sample(index), lambda: True, told.put)
    numbers = [told.get(timeout=10) for _ in range(5)]
    found = depot.take([Key("a/1", number) for number in numbers], 10.0)
    assert [read_sample(data) for data in found] == [sample(i) for i in range(5)]
    assert not failures
    porter.close()
    depot.close()


def test_nothing_is_told_before_a_depot_has_it_and_what_nobody_wants_is_let_go():
    porter, told, failures = started()
    wanted, answers = {"is": True}, []

    def is_wanted():
        answers.append(wanted["is"])
        return answers[-1]

    # A depot that is gone: its port answers no more.
    with socket.create_server((HOST, 0)) as server:
        gone = server.getsockname()
    porter.to(gone)
    porter.carry(sample(0), is_wanted, told.put)
    porter.carry(sample(1), lambda: True, told.put)
    assert told.empty()
    wanted["is"] = False
    wait_until(lambda: answers[-1:] == [False])
    depot = Depot(HOST, "token", failures.append)
    porter.to(depot.address)
    assert told.get(timeout=20) == 2
    found = depot.take([Key("a/1", 2)], 10.0)
    assert read_sample(found[0]) == sample(1)
    assert depot.num_kept() == 1
    assert told.empty()
    porter.close()
    depot.close()


def test_another_depot_takes_over_from_the_next_completion_on():
    porter, told, failures = started()
    first = Depot(HOST, "token", failures.append)
    second = Depot(HOST, "token", failures.append)
    porter.to(first.address)
    porter.carry(sample(0), lambda: True, told.put)
    assert told.get(timeout=10) == 1
    porter.to(second.address)
    porter.carry(sample(1), lambda: True, told.put)
    assert told.get(timeout=10) == 2
    # What the system has taken a depot may still have to read.
    assert len(first.take([Key("a/1", 1)], 10.0)) == 1
    assert len(second.take([Key("a/1", 2)], 10.0)) == 1
    assert (first.num_kept(), second.num_kept()) == (1, 1)
    for one in (porter, first, second):
        one.close()
