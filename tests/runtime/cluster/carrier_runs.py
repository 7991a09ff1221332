"""A run by each carrier on one Ray, in a process of its own: Ray forks, JAX minds.

python -m tests.runtime.cluster.carrier_runs FOLDER

FOLDER/shared, FOLDER/line, FOLDER/ray, FOLDER/transfer and FOLDER/folder differ in
`Cluster.carriers` alone, each of which has no other to fall back on.
"""

import dataclasses
import pathlib
import sys

from jigsaw_jax import settings
from jigsaw_jax.runtime.cluster.head import Head
from jigsaw_jax.runtime.cluster.shell import ClusterRuntime
from jigsaw_jax.settings.cluster import CARRIERS
from tests.runtime.test_local import make_train


def main(folder):
    train = make_train(updates=3, reduction="ordered")
    head = Head("local:2", train)
    head.open()
    try:
        for name in CARRIERS:
            cluster = settings.Cluster(
                heartbeat_s=20.0, carriers=(name,), carrier_s=60.0
            )
            runtime = ClusterRuntime(
                dataclasses.replace(train, cluster=cluster),
                "local:2",
                run_dir=folder / name,
                resume=False,
                operative="",
            )
            assert runtime.run() == 0
    finally:
        head.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
