"""`python -m tests.bench.controller`: the control loop before 64 hosts.

Simulated hosts (`controller_hosts`) complete groups at a steady rate. What they talk to
is a cluster's whole controller: control loop, pipeline, crew, roster, fleet, Ray, logs.
Their completions go to the depot in the learner's process, and the controller has keys.

Prints processor seconds of this process for each second's groups, and the time from the
end of a group's last sample until the pipeline has the group complete. Exits 1 where a
bound is missed: half a core at 1,000 groups a second, 50 ms for 99 of 100 groups, 2 KB
of references a group. Leaves what it measured in the folder that it names. Use a quiet
machine; `--profile` shows where the time goes, and adds to it.
"""

import argparse
import collections
import cProfile
import json
import os
import pathlib
import pstats
import sys
import tempfile
import threading
import time
from typing import Any
from unittest import mock

import ray

from jigsaw_jax.records import SampleId, SamplesReported
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.cluster import actor
from jigsaw_jax.runtime.cluster.shell import ClusterRuntime
from jigsaw_jax.runtime.control import Control
from jigsaw_jax.runtime.progress import Progress
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.store.journal import EventLog
from tests.bench import control
from tests.bench.controller_hosts import Handle, Hosts, Load, keep_to

CORES_MAX = 0.5
LATENCY_MAX_S = 0.050
REFERENCE_BYTES_MAX = 2048
# Updates that are not counted.
WARM_UP = 10
# Of a uid, "main/17/0", the row's last figure.
LOOKED_AT = -3
CLUSTER = ("Cluster.store_bytes = 100_000_000", "Cluster.heartbeat_s = 60.0")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups_per_s", type=float, default=1000.0)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2, help="of the hosts")
    parser.add_argument("--samples", type=int, default=8, help="of a group")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--groups_per_update", type=int, default=500)
    parser.add_argument("--payload_kb", type=float, default=200.0, help="of a group")
    parser.add_argument("--pin", action="store_true", help="a core for the controller")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="jigsaw-controller-"))
    watch, crowd = Watch(args.samples, WARM_UP + args.updates - 1), Crowd(args)
    # Reading what was sampled is not the control loop's work.
    put(Record, "_write_rollouts", lambda *_, **__: None)
    put(actor, "make", crowd.make)
    profiles = profile() if args.profile else []
    where = f"local:{args.hosts + 1}"
    runtime = ClusterRuntime(
        control.train_of(args, WARM_UP + args.updates, 128, CLUSTER),
        where,
        run_dir=folder / "run",
        resume=False,
        operative="",
    )
    assert runtime.run() == 0
    for one in profiles:
        pstats.Stats(one).sort_stats("tottime").print_stats(32)
    return report(args, watch, folder)


def put(where, name, what):
    """In the place of what is there, to the end of this process."""
    mock.patch.object(where, name, what).start()


class Watch:
    """Looks at the pipeline from outside, at one group in ten.

    Attributes:
      latencies_s: from the end of its last sample until a group is complete.
      threads: processor seconds of each, at the last update.
      marks: time, processor time, bytes heard and calls of Ray's made, at the end of
        each update.
    """

    def __init__(self, samples_per_group, last_update):
        self.samples_per_group = samples_per_group
        self.last_update = last_update
        self.latencies_s = []
        self.marks = []
        self.heard_bytes = 0
        self.under_way = {}
        self.threads = []
        apply, from_bytes = Pipeline.apply, wire.from_bytes
        intervals = EventLog.intervals

        def apply_and_look(pipeline, *events):
            effects = apply(pipeline, *events)
            for event in events:
                if type(event) is SamplesReported:
                    # Here, since a call a sample would be seen in what is measured.
                    for sample, _, _ in event.scored:
                        if sample[0][LOOKED_AT] == "7":
                            self.scored(sample)
            return effects

        def log_and_look(log, name, keys, rows):
            intervals(log, name, keys, rows)
            for row in rows if name == "sample" else ():
                if row[4][LOOKED_AT] == "7":
                    self.finished(SampleId(*row[4:7]), row[2])

        def from_bytes_and_count(data):
            self.heard_bytes += len(data)
            return from_bytes(data)

        put(Pipeline, "apply", apply_and_look)
        put(EventLog, "intervals", log_and_look)
        put(wire, "from_bytes", from_bytes_and_count)
        put(Progress, "show", lambda _, record: self.mark(record))

    def finished(self, sample, end_s):
        # Hosts' clocks are lined up by their shortest message, which took no time.
        last_s, scored = self.under_way.setdefault(sample[:2], (0.0, set()))
        self.under_way[sample[:2]] = max(last_s, end_s), scored

    def scored(self, sample):
        if sample[:2] in self.under_way:
            last_s, scored = self.under_way[sample[:2]]
            scored.add(sample.sample)
            if len(scored) == self.samples_per_group:
                del self.under_way[sample[:2]]
                self.latencies_s.append(time.monotonic() - last_s)

    def mark(self, record):
        if record["update"] == WARM_UP - 1:
            self.latencies_s.clear()
        now = time.monotonic(), time.process_time(), self.heard_bytes, Handle.num_calls
        self.marks.append(now)
        if record["update"] == self.last_update:
            self.threads = threads()


class Crowd:
    """Makes hosts in the place of worker processes."""

    def __init__(self, args):
        self.args = args
        everywhere = sorted(os.sched_getaffinity(0))
        # The controller's, which has hosts of its own to talk to: one core, and for the
        # others the rest.
        self.own = frozenset(everywhere[:1] if args.pin else everywhere)
        self.others = frozenset((args.pin and everywhere[1:]) or everywhere)
        self.processes = []
        self.hired = 0

    def make(self, options, charter, others):
        del others
        told, args = json.loads(charter), self.args
        keep_to(self.own)
        if told["name"] == "learner":
            process = self.start(options)
        elif len(self.processes) < args.processes:
            process = self.start(options)
            self.processes.append(process)
        else:
            process = self.processes[self.hired % args.processes]
        self.hired += 1
        ray.get(process.hire.remote(told, self.hired))
        return Handle(process, told["name"])

    def start(self, options):
        args = self.args
        load = Load(
            samples_per_s=args.groups_per_s * args.samples / args.hosts,
            sample_bytes=int(args.payload_kb * 1000 / args.samples),
            cores=self.others,
        )
        groups = {"commands": 1, "messages": 1, "offers": 1, "life": args.hosts + 4}
        remote: Any = ray.remote
        made = remote(concurrency_groups=groups, num_cpus=0)(Hosts)
        return made.options(**options).remote(load)


def profile():
    """Profiles of the control loop, which also listens, filled as it runs."""
    profiles = []

    def profiled(function):
        def call(*args):
            profiles.append(cProfile.Profile(time.thread_time))
            return profiles[-1].runcall(function, *args)

        return call

    put(Control, "_serve", profiled(Control._serve))
    return profiles


def threads() -> list[tuple[str, float]]:
    """Processor seconds of this process's threads by name, the busiest first."""
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    spent: collections.defaultdict[str, float] = collections.defaultdict(float)
    for path in pathlib.Path("/proc/self/task").glob("*/stat"):
        head, _, tail = path.read_text().rpartition(")")
        name = names.get(path.parent.name, head.partition("(")[2])
        ticks = sum(map(int, tail.split()[11:13]))
        spent[name] += ticks / os.sysconf("SC_CLK_TCK")
    return sorted(spent.items(), key=lambda one: -one[1])


def report(args, watch, folder) -> int:
    start_s, cpu_s, heard, calls = watch.marks[WARM_UP - 1]
    end_s, end_cpu_s, end_heard, end_calls = watch.marks[-1]
    updates = len(watch.marks) - WARM_UP
    groups = updates * args.groups_per_update
    rate = groups / (end_s - start_s)
    cores = (end_cpu_s - cpu_s) / groups * args.groups_per_s
    reference_bytes = (end_heard - heard) / groups
    late_s = sorted(watch.latencies_s)
    p50_s, p99_s = (late_s[int(len(late_s) * share)] for share in (0.5, 0.99))
    path = folder / "controller.json"
    path.write_text(json.dumps({"marks": watch.marks, "latencies_s": late_s}))
    print(f"{args.hosts} hosts, {rate:.0f} groups/s of {args.samples} samples")
    print(
        f"controller: {1e6 * (end_cpu_s - cpu_s) / groups:.0f} us a group, that is "
        f"{cores:.2f} cores at {args.groups_per_s:g} groups/s"
    )
    print(
        f"latency of {len(late_s)} groups: p50 {1e3 * p50_s:.1f} ms, "
        f"p99 {1e3 * p99_s:.1f} ms"
    )
    print(
        f"references: {reference_bytes:.0f} bytes a group, "
        f"{(end_calls - calls) / updates:.1f} calls of Ray's an update; {path}"
    )
    shares = ", ".join(f"{name} {cpu_s:.1f}" for name, cpu_s in watch.threads[:8])
    print(f"processor seconds by thread, all told: {shares}")
    bounds = {
        f"{CORES_MAX} cores": cores <= CORES_MAX,
        f"p99 {1e3 * LATENCY_MAX_S:g} ms": p99_s <= LATENCY_MAX_S,
        f"{REFERENCE_BYTES_MAX} bytes": reference_bytes <= REFERENCE_BYTES_MAX,
        f"{args.groups_per_s:g} groups/s": rate >= 0.95 * args.groups_per_s,
    }
    missed = [name for name, holds in bounds.items() if not holds]
    print(f"bounds: {'held' if not missed else f'missed: {missed}'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
