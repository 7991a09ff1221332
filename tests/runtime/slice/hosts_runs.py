"""A run whose workers have two hosts each, in a process of its own: Ray forks.

python -m tests.runtime.slice.hosts_runs FOLDER

Behind the first update the second host of the sampler is stopped, behind the third the
second host of the learner is killed.
"""

import dataclasses
import os
import pathlib
import signal
import sys

from jigsaw_jax import settings
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
        cluster=settings.Cluster(heartbeat_s=15.0, **cluster),
    )


def strike(victims):
    """Have the second host of a worker hit by a signal when an update is shown."""
    # Imported with Ray, which must not be before its loopback is asked for.
    from jigsaw_jax.runtime.cluster.fleet import Fleet

    show, hire = Progress.show, Fleet.hire
    hands = {}

    def hire_and_note(self, name, role, place, index):
        hands[name] = hire(self, name, role, place, index)
        return hands[name]

    def show_and_strike(self, record):
        show(self, record)
        name, signum = victims.pop(record["update"], (None, 0))
        if name is not None:
            pid = hands[name].others[0].pid
            # 0 is this process, and all that were started with it.
            assert pid
            os.kill(pid, signum)

    Progress.show, Fleet.hire = show_and_strike, hire_and_note


def main(folder):
    train = train_of(sampler_hosts=2, learner_hosts=2)
    head = Head("local:2", train)
    head.open()
    try:
        strike({0: ("sampler-0", signal.SIGSTOP), 2: ("learner", signal.SIGKILL)})
        assert run(folder / "hosts", "local:2", train) == 0
    finally:
        head.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
