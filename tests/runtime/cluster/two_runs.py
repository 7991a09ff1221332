"""Four runs over processes on one Ray, in a process of its own: Ray forks, JAX minds.

python -m tests.runtime.cluster.two_runs FOLDER

FOLDER/one is `local:2`. FOLDER/two is `local:3`, of which a sampler is killed behind
the first update and the learner behind the third. In FOLDER/helped, `local:3` too, a
sampler takes gradients from the second round on, of two updates. In FOLDER/hung,
`local:2`, the learner is stopped when samplers are about to ask it for version 2.
"""

import dataclasses
import json
import os
import pathlib
import signal
import sys

from jigsaw_jax import settings
from jigsaw_jax.runtime.cluster.head import Head
from jigsaw_jax.runtime.cluster.shell import ClusterRuntime
from jigsaw_jax.runtime.progress import Progress
from tests.runtime.test_local import make_train
from tests.waiting import wait_until


def train_of(heartbeat_s=20.0):
    train = make_train(updates=4, reduction="ordered")
    cluster = settings.Cluster(heartbeat_s=heartbeat_s)
    return dataclasses.replace(train, cluster=cluster)


def helped_of(**cluster):
    train = make_train(updates=4, size=2)
    return dataclasses.replace(
        train, cluster=settings.Cluster(heartbeat_s=20.0, **cluster)
    )


def pid_of(path, worker):
    # A line may be half written, and one that is hired has no process yet.
    lines = (path / "events.jsonl").read_text().split("\n")[:-1]
    pids = [
        event["pid"]
        for event in map(json.loads, lines)
        if event.get("track") == f"worker/{worker}" and event["pid"]
    ]
    return pids[-1]


def kill_behind(path, victims):
    """Have a worker killed when an update is shown."""
    show = Progress.show

    def show_and_kill(self, record):
        show(self, record)
        victim = victims.pop(record["update"], None)
        if victim is not None:
            os.kill(pid_of(path, victim), signal.SIGKILL)

    Progress.show = show_and_kill


def stop_before(version, path):
    """Have the learner stopped, once, when it has told of a version.

    What the updates before it trained on is in `path` by then: the log comes for it to
    the learner's process, and may be late.
    """
    # It imports Ray, which reads its settings then: only once those are made.
    from jigsaw_jax.runtime.cluster.roster import Roster

    take, versions = Roster.take_weights, [version]

    def stop_and_take(self, offered):
        if offered.version in versions:
            versions.clear()
            logged = path / f"rollouts/update-{version - 1:06d}.jsonl"
            wait_until(logged.exists)
            os.kill(self.learner.pid, signal.SIGSTOP)
        take(self, offered)

    Roster.take_weights = stop_and_take


def run(path, address, train):
    runtime = ClusterRuntime(train, address, run_dir=path, resume=True, operative="")
    return runtime.run()


def main(folder):
    head = Head("local:2", train_of())
    head.open()
    try:
        assert run(folder / "one", "local:2", train_of()) == 0
        helped = helped_of(role_switch_after=1)
        assert run(folder / "helped", "local:3", helped) == 0
        kill_behind(folder / "two", {0: "sampler-0", 2: "learner"})
        assert run(folder / "two", "local:3", train_of()) == 0
        stop_before(2, folder / "hung")
        assert run(folder / "hung", "local:2", train_of(heartbeat_s=10.0)) == 0
    finally:
        head.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
