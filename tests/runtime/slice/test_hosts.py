"""Slices of two hosts that lose one do what a process with their devices does."""

import json

import jax
import numpy as np
import pytest

from tests.runtime.compared import arrays, beside_one_process, run_apart, summary
from tests.runtime.slice.hosts_runs import train_of
from tests.runtime.test_local import rollouts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs, the first in this process as `whole`, and its state's shapes."""
    folder = tmp_path_factory.mktemp("hosts")
    return beside_one_process("slice.hosts_runs", train_of(), folder)


def test_two_hosts_do_what_one_process_with_as_many_devices_does(runs):
    folder, abstract = runs
    assert len(rollouts(folder / "whole")) == 4 * 4 * 3
    assert rollouts(folder / "hosts") == rollouts(folder / "whole")
    # With two devices each sum over devices has two terms, whose order is no matter.
    jax.tree.map(
        np.testing.assert_array_equal,
        arrays(folder / "hosts", abstract),
        arrays(folder / "whole", abstract),
    )


def test_the_loss_of_its_second_host_is_the_loss_of_a_slice(runs):
    path = runs[0] / "hosts"
    text = (path / "events.rewound.jsonl").read_text()
    text += (path / "events.jsonl").read_text()
    lost = [json.loads(x) for x in text.splitlines() if '"name":"lost"' in x]
    reasons = {event["track"]: event["reason"] for event in lost}
    assert len(lost) == 2
    assert reasons["worker/sampler-0"] == "host 1: silent for 16 s"
    assert reasons["worker/learner"].startswith("host ")
    found = summary(path)
    restarts = {worker["name"]: worker["restarts"] for worker in found["workers"]}
    assert restarts == {"learner": 1, "sampler-0": 1}
    assert [worker["hosts"] for worker in found["workers"]] == [2, 2]
    assert found["groups_committed"] == 4 * 4
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [0, 1, 2, 3]


def test_hosts_that_name_one_slice_are_one_sampler(tmp_path):
    run_apart("slice.auto_run", tmp_path)
    found = summary(tmp_path / "auto")
    workers = {worker["name"]: worker["hosts"] for worker in found["workers"]}
    assert workers == {"learner": 1, "sampler-0": 2}
    assert found["groups_committed"] == 4
