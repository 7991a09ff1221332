"""A run on a Ray cluster whose nodes say that two of them are a slice.

python -m tests.runtime.slice.auto_run FOLDER

The hosts are raylets on this machine; FOLDER/auto is the run.
"""

import os
import pathlib
import sys
from typing import Any

from tests.runtime.cluster.two_runs import run
from tests.runtime.slice.hosts_runs import train_of

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100_000_000}


def main(folder):
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Keeps every port on the loopback; read at the import.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False}
    )
    try:
        for number in (2, 1):
            resources = {"jigsaw_slice:s": 2, "jigsaw_host": number}
            cluster.add_node(**NODE, resources=resources)
        return run(folder / "auto", cluster.address, train_of(updates=1))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
