"""Runs with adapters that export their policy, in a process of its own: Ray forks.

python -m tests.runtime.slice.adapters_runs FOLDER

FOLDER/processes has workers of one host with two devices, FOLDER/hosts of two hosts.
"""

import dataclasses
import pathlib
import sys

from jigsaw_jax.runtime.cluster.head import Head
from jigsaw_jax.settings import Lora
from tests.runtime.cluster.two_runs import run
from tests.runtime.slice import hosts_runs


def train_of(**cluster):
    train = hosts_runs.train_of(**cluster)
    return dataclasses.replace(
        train,
        decoder=dataclasses.replace(train.decoder, lora=Lora(rank=2, alpha=4.0)),
        store=dataclasses.replace(train.store, export="hf"),
    )


def main(folder):
    # Each host of the learner promises its own part of a version.
    hosts = train_of(sampler_hosts=2, learner_hosts=2, carriers=("line",))
    head = Head("local:2", hosts)
    head.open()
    try:
        assert run(folder / "processes", "local:2", train_of()) == 0
        assert run(folder / "hosts", "local:2", hosts) == 0
    finally:
        head.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
