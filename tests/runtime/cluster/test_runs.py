"""Whole runs over processes that are killed; they end as a run in one process does.

One Ray for the file: it takes longer to start than a run.
"""

import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest

from jigsaw_jax import settings
from jigsaw_jax.runtime.cluster.shell import ClusterRuntime
from jigsaw_jax.runtime.local import LocalRuntime
from jigsaw_jax.runtime.progress import Progress
from jigsaw_jax.store.checkpoint import Checkpoints
from tests.runtime.test_local import make_train, rollouts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def local_ray(tmp_path_factory):
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Its own sockets and pipes are closed by its finalisers.
    ray.init(
        address="local",
        num_cpus=0,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=100_000_000,
        log_to_driver=False,
        _temp_dir=str(tmp_path_factory.mktemp("r")),
    )
    yield
    ray.shutdown()


def train_of(updates=4):
    train = make_train(updates=updates, reduction="ordered")
    return dataclasses.replace(train, cluster=settings.Cluster(heartbeat_s=20.0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run in one process: its directory and the shapes of its checkpoint."""
    path = tmp_path_factory.mktemp("whole")
    runtime = LocalRuntime(train_of(), run_dir=path, resume=True, operative="")
    assert runtime.run() == 0
    learner = runtime.control._crew._team.parts.learner
    return path, {"learner": learner.abstract_state()}


def run(path, address):
    runtime = ClusterRuntime(
        train_of(), address, run_dir=path, resume=True, operative=""
    )
    assert runtime.run() == 0
    return json.loads((path / "summary.json").read_text())


def assert_same(path, whole):
    expected, abstract = whole
    assert rollouts(path) == rollouts(expected)
    arrays = []
    for directory in (path, expected):
        checkpoints = Checkpoints(directory / "checkpoints", read_only=True)
        step = checkpoints.latest_step()
        assert step == 4
        arrays.append(checkpoints.restore(step, abstract)[0])
        checkpoints.close()
    jax.tree.map(np.testing.assert_array_equal, *arrays)


def pid_of(path, worker):
    lines = (path / "events.jsonl").read_text().splitlines()
    pids = [
        event["pid"]
        for event in map(json.loads, lines)
        if event.get("track") == f"worker/{worker}"
    ]
    return pids[-1]


def test_one_sampler_gives_the_bits_of_one_process(tmp_path, whole, local_ray):
    del local_ray
    summary = run(tmp_path, "local:2")
    assert_same(tmp_path, whole)
    roles = {worker["name"]: worker["role"] for worker in summary["workers"]}
    assert roles == {"learner": "train", "sampler-0": "sample"}
    pids = {worker["pid"] for worker in summary["workers"]}
    assert len(pids | {os.getpid()}) == 3
    assert summary["compilations_after_warmup"] == 0


def test_so_do_two_of_which_one_is_killed_and_a_learner_that_is_killed_too(
    tmp_path, whole, local_ray, monkeypatch
):
    del local_ray
    victims = {0: "sampler-0", 2: "learner"}
    show = Progress.show

    def show_and_kill(self, record):
        show(self, record)
        victim = victims.pop(record["update"], None)
        if victim is not None:
            os.kill(pid_of(tmp_path, victim), signal.SIGKILL)

    monkeypatch.setattr(Progress, "show", show_and_kill)
    summary = run(tmp_path, "local:3")
    assert not victims
    assert_same(tmp_path, whole)
    restarts = {worker["name"]: worker["restarts"] for worker in summary["workers"]}
    assert restarts["learner"] == 1
    assert restarts["sampler-1"] == 0
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [0, 1, 2, 3]
