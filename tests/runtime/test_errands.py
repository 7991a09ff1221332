"""Work in parts, and the turns in between."""

import collections
import dataclasses
import queue
import types
from typing import Any
from unittest import mock

import pytest

from jigsaw_jax.data.source import PromptSource
from jigsaw_jax.records import (
    AccumulateGroups,
    GroupId,
    Prompt,
    RequestPrompts,
    SampleId,
    Score,
    UpdateStepped,
)
from jigsaw_jax.runtime import inputs, record
from jigsaw_jax.runtime.cluster.places import Remote
from jigsaw_jax.runtime.control import Control
from jigsaw_jax.runtime.crew import Gather
from jigsaw_jax.runtime.errands import Errands
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.store import files
from tests.runtime.test_local import make_train

NOWHERE: Any = None


def open_control(train, path) -> Any:
    gather = mock.Mock(spec=Gather)
    return Control(train, gather, run_dir=path, resume=False, operative="")


def test_each_part_goes_behind_what_has_come():
    loop, done = queue.SimpleQueue(), []

    def work(name, parts):
        for part in range(parts):
            if part:
                yield
            done.append((name, part))

    errands = Errands(loop.put)
    errands.add(work("b", 3))
    loop.put("heard")
    # What is added meanwhile waits for all of it.
    errands.add(work("c", 2))
    assert not done
    turns = []
    while not loop.empty():
        turn = loop.get()
        turns.append(turn)
        if turn is errands:
            errands.go_on()
    assert turns == [errands, "heard", errands, errands, errands, errands]
    assert done == [("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]


def test_what_was_finished_early_is_not_done_again_and_posted_once():
    loop, done = queue.SimpleQueue(), []

    def work(name):
        for part in range(3):
            if part:
                yield
            done.append((name, part))

    errands = Errands(loop.put)
    errands.add(work("a"))
    errands.finish()
    assert done == [("a", 0), ("a", 1), ("a", 2)]
    errands.finish()
    errands.add(work("b"))
    assert not done[3:]
    # The turn that was asked for before is there, and not a second one.
    assert loop.qsize() == 1
    while not loop.empty():
        loop.get().go_on()
    assert done[3:] == [("b", 0), ("b", 1), ("b", 2)]


def test_a_step_that_comes_before_its_groups_are_settled_is_logged_with_all_of_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(record, "SETTLED_MAX", 2)
    train = make_train()
    size = train.pipeline.samples_per_group
    control = open_control(train, tmp_path)
    ids = tuple(GroupId(f"u{order}", 0) for order in range(5))
    for uid, draw in ids:
        prompt = Prompt(uid=uid, tokens=(1,), text="", answer="", task="")
        control._payloads.add_prompts((prompt,))
        for index in range(size):
            sample = SampleId(uid, draw, index)
            control._payloads.add_sample(Remote(sample, 0, 10, False, NOWHERE))
            control._payloads.add_score(sample, 0, Score(value=float(index == 0)))
    pipeline = mock.Mock(spec=Pipeline, version=3, round=3, staleness=(0.0, 0))
    pipeline.ledger_counts.return_value = {}
    pipeline.frontier_groups = 1
    pipeline.apply.return_value = []
    forgotten = []
    control._crew = types.SimpleNamespace(
        pipeline=pipeline,
        accumulate=lambda *_: None,
        forget=forgotten.extend,
        flush=lambda: None,
        num_timeouts=0,
        take_metrics=lambda _: {},
        take_advantages=lambda _: {},
        learner_busy=collections.deque(),
        sampler_busy=collections.deque(),
        whole=lambda group: dataclasses.replace(group, samples=(), scores=()),
    )
    control._record.admitted()
    handed = AccumulateGroups(groups=ids, orders=tuple(range(5)), update=0)
    control._carry([handed])
    control._take([control._events.get()])
    assert len(forgotten) == 2
    control._take([UpdateStepped(now_s=control._clock.now_s(), update=0)])
    assert forgotten == list(ids)
    assert control._payloads.num_open() == 0
    (line,) = files.read_lines(tmp_path / "metrics.jsonl")
    assert line["tokens/trained"] == 5 * size * 10
    assert line["reward/mean"] == pytest.approx(1 / size, abs=1e-15)
    while not control._events.empty():
        control._take([control._events.get()])
    control._record.abandon()


def test_prompts_read_in_parts_are_offered_whole_and_in_the_order_of_the_data(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(inputs, "READ_MAX", 3)
    control = open_control(make_train(), tmp_path)
    offered = []

    class Asking:
        """Asks for one more while eight are read, and for two in answer to those."""

        version = round = 0
        next_prompt_index = 5

        def apply(self, event):
            offered.append(event.uids)
            self.next_prompt_index += len(event.uids)
            return [RequestPrompts(num=2)] if len(offered) == 1 else []

    def prompt(position):
        return Prompt(uid=f"u{position}", tokens=(1,), text="", answer="", task="")

    source = mock.Mock(spec=PromptSource)
    source.prompt.side_effect = prompt
    control._crew = types.SimpleNamespace(pipeline=Asking(), source=source)
    control._carry([RequestPrompts(num=8)])
    control._carry([RequestPrompts(num=1)])
    assert offered == []
    while not control._events.empty():
        control._take([control._events.get()])
    assert [len(uids) for uids in offered] == [8, 1, 2]
    uids = [uid for some in offered for uid in some]
    assert uids == [f"u{position}" for position in range(5, 16)]
    assert all(control._payloads.prompt(uid).uid == uid for uid in uids)
    control._record.abandon()
