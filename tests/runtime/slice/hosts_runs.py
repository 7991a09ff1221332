"""Runs with slices of two hosts, in a process of its own: Ray forks, JAX minds.

python -m tests.runtime.slice.hosts_runs FOLDER

FOLDER/sampler has a sampler of two hosts, whose second is killed behind the first
update. FOLDER/learner has a learner of two hosts, whose second is killed behind the
third.
"""

import dataclasses
import os
import pathlib
import signal
import sys

from jigsaw_jax import settings
from jigsaw_jax.runtime.cluster.fleet import Fleet
from jigsaw_jax.runtime.cluster.head import Head
from jigsaw_jax.runtime.progress import Progress
from tests.runtime.cluster.two_runs import run
from tests.runtime.test_local import make_train


def train_of(updates=4, **cluster):
    train = make_train(updates=updates, reduction="ordered")
    return dataclasses.replace(
        train,
        decoder=dataclasses.replace(train.decoder, num_kv_heads=2),
        mesh=settings.Mesh(fsdp=2, sampler_tensor=2, shared=True),
        cluster=settings.Cluster(heartbeat_s=20.0, **cluster),
    )


def kill_second_host(worker, behind):
    """Have the second host of a worker killed when an update is shown."""
    show, hire = Progress.show, Fleet.hire
    victims = []

    def hire_and_note(self, name, *args):
        hand = hire(self, name, *args)
        if name == worker:
            victims.append(hand.others[0])
        return hand

    def show_and_kill(self, record):
        show(self, record)
        if record["update"] == behind and len(victims) == 1:
            os.kill(victims[0].pid, signal.SIGKILL)

    Progress.show, Fleet.hire = show_and_kill, hire_and_note

    def undo():
        Progress.show, Fleet.hire = show, hire

    return undo


def main(folder):
    head = Head("local:2", train_of())
    head.open()
    try:
        for worker, behind in (("sampler", 0), ("learner", 2)):
            path = folder / worker
            name = "sampler-0" if worker == "sampler" else worker
            undo = kill_second_host(name, behind)
            assert run(path, "local:2", train_of(**{f"{worker}_hosts": 2})) == 0
            undo()
    finally:
        head.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
