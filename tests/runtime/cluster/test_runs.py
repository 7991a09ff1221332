"""Whole runs over processes that are killed; they end as a run in one process does."""

import json
import os

import jax
import numpy as np
import pytest

from tests.bench.overlap_replay import Replay
from tests.runtime.cluster.two_runs import helped_of, train_of
from tests.runtime.compared import arrays, beside_one_process, summary
from tests.runtime.test_local import rollouts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs, the first in this process as `whole`, and its state's shapes."""
    folder = tmp_path_factory.mktemp("runs")
    return beside_one_process("cluster.two_runs", train_of(), folder)


@pytest.mark.parametrize("name", ["one", "two", "hung"])
def test_every_sample_and_weight_is_that_of_one_process_bit_for_bit(runs, name):
    folder, abstract = runs
    assert len(rollouts(folder / "whole")) == 4 * 4 * 3
    assert rollouts(folder / name) == rollouts(folder / "whole")
    jax.tree.map(
        np.testing.assert_array_equal,
        arrays(folder / name, abstract),
        arrays(folder / "whole", abstract),
    )


def test_sums_of_a_sampler_that_turned_to_gradients_count_as_the_learner_s_own(
    runs,
):
    folder, _ = runs
    workers = summary(folder / "helped")["workers"]
    assert {worker["name"]: worker["role"] for worker in workers} == {
        "learner": "train",
        "sampler-0": "sample+train",
        "sampler-1": "sample",
    }
    # In each update of the second round, the second of which has weights of its own.
    lines = (folder / "helped/events.jsonl").read_text().splitlines()
    summed = [e for e in map(json.loads, lines) if e.get("name") == "accumulate"]
    helped = [event["update"] for event in summed if event.get("worker")]
    assert helped == [2, 3]
    # Which groups an update has is up to who is first: the same groups, one by one.
    worst, updates, is_same = Replay(folder / "helped", helped_of()).run()
    assert (updates, is_same) == (4, True)
    # Four Adam steps of 1e-2 on gradients that differ by their order of summation.
    assert worst <= 1e-5


def test_each_worker_is_a_process_of_its_own_and_compiles_nothing_later(runs):
    folder, _ = runs
    found = summary(folder / "one")
    roles = {worker["name"]: worker["role"] for worker in found["workers"]}
    assert roles == {"learner": "train", "sampler-0": "sample"}
    assert len({worker["pid"] for worker in found["workers"]} | {os.getpid()}) == 3
    assert found["compilations_after_warmup"] == 0


def test_a_sampler_that_asks_a_learner_that_hangs_waits_for_the_next_one(runs):
    folder, _ = runs
    path = folder / "hung"
    restarts = {w["name"]: w["restarts"] for w in summary(path)["workers"]}
    assert restarts == {"learner": 1, "sampler-0": 0}
    text = (path / "events.jsonl").read_text()
    text += (path / "events.rewound.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines() if '"worker/' in line]
    lost = [event["reason"] for event in events if event["name"] == "lost"]
    assert lost == ["silent for 11 s"]
    assert not [event for event in events if event["name"] == "unloaded"]


def test_who_is_killed_starts_again_and_nobody_else_does(runs):
    folder, _ = runs
    workers = summary(folder / "two")["workers"]
    restarts = {worker["name"]: worker["restarts"] for worker in workers}
    assert restarts["learner"] == 1
    assert restarts["sampler-1"] == 0
    text = (folder / "two" / "events.jsonl").read_text()
    text += (folder / "two" / "events.rewound.jsonl").read_text()
    lost = [json.loads(x) for x in text.splitlines() if '"name":"lost"' in x]
    assert sorted(event["track"] for event in lost) == [
        "worker/learner",
        "worker/sampler-0",
    ]
    lines = (folder / "two" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [0, 1, 2, 3]
