"""A Ray cluster that a host joins and leaves while a run goes on.

python -m tests.runtime.cluster.nodes FOLDER {visit,swap}

FOLDER/run begins on a host that is the learner's, and waits; when another has joined it
makes two updates. The hosts are raylets on this machine. "visit": a third joins, and is
cut off when it has sampled for three updates. "swap": the learner is killed, and while
another begins the only sampler's host is cut off; only when the run says that it waits
for one another joins. Three more updates, and Ctrl-C.
"""

import argparse
import os
import pathlib
import signal
import sys
from typing import Any

from tests.bench.chaos import Run, marks

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100_000_000}
STEP_S = 240.0


def has(run, name):
    """Whether the third host's sampler has a mark of this name."""
    found = (e for e in marks(run.dir) if e["track"] == "worker/sampler-1")
    return any(event["name"] == name for event in found)


def wait(run, is_so):
    if not run.wait_for(is_so, STEP_S):
        raise SystemExit((run.dir.parent / "log").read_text()[-3000:])


def wait_updates(run, num):
    before = run.updates()
    wait(run, lambda: run.updates() >= before + num)


def wait_said(run, text):
    log = run.dir.parent / "log"
    wait(run, lambda: text in log.read_text())


def visit(run, cluster, first):
    del first
    node = cluster.add_node(**NODE)
    wait(run, lambda: has(run, "joined"))
    wait_updates(run, 3)
    cluster.remove_node(node, allow_graceful=False)
    wait(run, lambda: has(run, "lost"))


def swap(run, cluster, first):
    (pid,) = run.pids("learner")
    os.kill(pid, signal.SIGKILL)
    cluster.remove_node(first, allow_graceful=False)
    wait_said(run, "the run waits for a host")
    cluster.add_node(**NODE)


def main(folder, scenario):
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Keeps every port on the loopback; read at the import.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray.cluster_utils import Cluster

    learners = {"include_dashboard": False, "resources": {"jigsaw_learner": 1}}
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **learners})
    # Losses here are told by lines that end; what is slow is no loss.
    patient = ["Cluster.heartbeat_s = 30.0", "Cluster.building_s = 120.0"]
    args = argparse.Namespace(
        cluster=cluster.address, gin="configs/bench/chaos.gin", set=patient
    )
    run = Run(args, folder)
    try:
        wait_said(run, "waiting for a slice that samples")
        first = cluster.add_node(**NODE)
        wait_updates(run, 2)
        scenario(run, cluster, first)
        wait_updates(run, 3)
        run.process.send_signal(signal.SIGINT)
        return run.process.wait(STEP_S)
    finally:
        run.process.kill()
        cluster.shutdown()


if __name__ == "__main__":
    scenarios = {"visit": visit, "swap": swap}
    sys.exit(main(pathlib.Path(sys.argv[1]), scenarios[sys.argv[2]]))
