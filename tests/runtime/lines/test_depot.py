"""Completions are kept until they are dropped, and who takes one waits for it."""

import threading

import pytest

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.lines.depot import Depot, DepotError, FarDepot, Key, read_keys
from jigsaw_jax.runtime.lines.door import dial
from tests.runtime.lines.pairs import HOST
from tests.waiting import wait_until

A, B, C = (Key("a/1", number) for number in (1, 2, 3))


def opened():
    failures = []
    return Depot(HOST, "token", failures.append), failures


def put(depot, source, numbers, pieces):
    line = dial(depot.address, "token", source, within_s=5.0)
    sizes = [len(piece) for piece in pieces]
    line.send(wire.to_bytes(["put", numbers, sizes]), b"".join(pieces))
    return line


def test_completions_come_by_line_and_are_taken_here_and_from_afar():
    depot, failures = opened()
    line = put(depot, "a/1", [1, 2, 3], [b"one", b"", b"three"])
    assert depot.take([B, C, A], 10.0) == [b"", b"three", b"one"]
    far = FarDepot(depot.address, "token", "helper")
    assert far.take([A, B], 10.0) == [b"one", b""]
    # They stay, also for who asks twice.
    assert far.take([A], 10.0) == [b"one"]
    depot.drop([A, Key("b/1", 9)])
    assert depot.num_kept() == 2
    with pytest.raises(DepotError, match=r"1 of 2 completions .* number 1 of a/1"):
        far.take([B, A], 0.05)
    assert not failures
    for one in (line, far, depot):
        one.close()


def test_who_takes_what_is_on_its_way_waits_for_it():
    depot, _ = opened()
    far = FarDepot(depot.address, "token", "log")
    found = []
    waiting = threading.Thread(target=lambda: found.extend(far.take([A, B], 20.0)))
    waiting.start()
    line = put(depot, "a/1", [1], [b"one"])
    assert depot.take([A], 10.0) == [b"one"]
    assert not found
    again = put(depot, "a/1", [2], [b"two"])
    waiting.join(20.0)
    assert found == [b"one", b"two"]
    for one in (line, again, far, depot):
        one.close()


def test_numbers_of_two_samplers_are_kept_apart_and_a_second_delivery_changes_nothing():
    depot, _ = opened()
    lines = [put(depot, name, [1], [name.encode()]) for name in ("a/1", "a/2", "a/1")]
    assert depot.take([Key("a/2", 1), A], 10.0) == [b"a/2", b"a/1"]
    for one in (*lines, depot):
        one.close()


def test_a_depot_that_is_gone_is_told_at_once_and_ever_after():
    depot, _ = opened()
    far = FarDepot(depot.address, "token", "log")
    line = put(depot, "a/1", [1], [b"one"])
    assert far.take([A], 10.0) == [b"one"]
    depot.close()
    assert far._line is not None
    far._line.close()
    for _ in range(2):
        with pytest.raises(DepotError, match="gone"):
            far.take([A], 10.0)
    line.close()


@pytest.mark.parametrize(
    "head",
    [
        ["put", [1], [7]],
        ["put", [1, 2], [3]],
        ["put", ["1"], [3]],
        ["pickle"],
        {"put": 1},
    ],
)
def test_a_request_that_no_sampler_makes_ends_the_run(head):
    depot, failures = opened()
    line = dial(depot.address, "token", "a/1", within_s=5.0)
    line.send(wire.to_bytes(head), b"one")
    line.wait_at_most(10.0)
    with pytest.raises(Exception, match=r".*"):
        line.receive()
    wait_until(lambda: failures)
    # What numbers and sizes say must agree, too.
    assert isinstance(failures[0].error, ValueError)
    for one in (line, depot):
        one.close()


@pytest.mark.parametrize("keys", [[["a"], [1], [2]], [[1], ["a"]], "a", [["a"], [1.5]]])
def test_keys_that_are_none_are_refused(keys):
    with pytest.raises(wire.WireError):
        read_keys(keys)
