"""`python -m tests.bench.memory`: does any process of a run grow?

Trains configs/bench/memory.gin, in one process and then on `local:3`, and reads the
memory of every process of it as updates go by: controller, learner, samplers, rewards
and, where it runs, Ray. Shared memory that it has mapped counts, as old weights would
lie there; files that are mapped don't.

What is lost shows in the floor: the least that was read in each of ten spans of
updates, since a step's buffers come and go above it. The learner's process gives freed
memory back before a checkpoint is taken, for a moment, so readings are close. A line is
laid through the floors behind the first third of the updates, by the median of slopes;
1,000 updates of a quick machine have too few floors to tell 1 MB in 100 from noise.
Exits 1 where it rises by more than --mb_max in 100 updates. The most that was read is
shown beside it: before and behind the middle of those updates. Leaves its samples in
the folder that it names; `--check FILE` reads them again.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
EVERY_S = 1.0
READ_S = 0.04
WARM_UP = 1 / 3
SPANS = 10
# Of /proc/PID/status.
KINDS = ("RssAnon", "RssShmem")
RAY = ("raylet", "gcs_server", "plasma", "ray::", "ray/_private")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gin", default="configs/bench/memory.gin")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--where", nargs="+", default=["here", "local:3"])
    parser.add_argument("--mb_max", type=float, default=1.0, help="in 100 updates")
    parser.add_argument("--check", type=pathlib.Path, help="samples of a run before")
    args = parser.parse_args()
    if args.check:
        return int(not show(args.check, args.mb_max))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="jigsaw-memory-"))
    is_flat = True
    for where in args.where:
        run_dir = folder / where.replace(":", "-")
        watch(args, where, run_dir)
        is_flat &= show(run_dir.with_suffix(".jsonl"), args.mb_max)
    print(
        f"bound: {args.mb_max:g} MB in 100 updates, {'held' if is_flat else 'missed'}"
    )
    return int(not is_flat)


def watch(args, where: str, run_dir: pathlib.Path) -> None:
    """Run, and write every second a line {"update", "mb", "most": {process: MB}}."""
    sets = [f"Train.updates = {args.updates}", *args.set]
    command = [sys.executable, "-m", "jigsaw_jax.main", "--gin", args.gin]
    command += ["--run_dir", str(run_dir)]
    command += [part for binding in sets for part in ("--set", binding)]
    if where != "here":
        command += ["--cluster", where]
    path = run_dir.with_suffix(".jsonl")
    with path.open("w") as samples, (run_dir.with_suffix(".log")).open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                update = updates(run_dir)
                names = workers(run_dir) | {process.pid: "controller"}
                least, most = extremes(dict(family(process.pid, names)))
                if update:
                    values = {"update": update, "mb": least, "most": most}
                    samples.write(json.dumps(values) + "\n")
                    samples.flush()
        finally:
            process.kill()
    assert process.returncode == 0, run_dir.with_suffix(".log").read_text()[-2000:]


def extremes(names: dict[int, str]) -> tuple[dict[str, float], dict[str, float]]:
    """The least and the most MB of each process within a second."""
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    for _ in range(round(EVERY_S / READ_S)):
        for pid, name in names.items():
            mb = memory(pid)
            if mb is not None:
                least[name] = min(mb, least.get(name, mb))
                most[name] = max(mb, most.get(name, mb))
        threading.Event().wait(READ_S)
    return least, most


def updates(run_dir: pathlib.Path) -> int:
    """Updates that were made."""
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def workers(run_dir: pathlib.Path) -> dict[int, str]:
    """Names of a cluster's processes, by pid."""
    found = {}
    with contextlib.suppress(OSError), (run_dir / "events.jsonl").open() as lines:
        for line in lines:
            if '"track":"worker/' in line and line.endswith("}\n"):
                event = json.loads(line)
                found[event.get("pid")] = event["track"].removeprefix("worker/")
    return found


def family(root: int, names: dict[int, str]) -> Iterator[tuple[int, str]]:
    """(pid, name) of all that descend from one process."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)] = int(stat[1])
    for pid in sorted(parents):
        with contextlib.suppress(OSError, KeyError):
            if descends(pid, root, parents):
                yield pid, f"{name(pid, names)} {pid}"


def memory(pid: int) -> float | None:
    """MB of a process; None of one that has ended."""
    try:
        fields = (pathlib.Path("/proc") / str(pid) / "status").read_text()
    except OSError:
        return None
    own = [fields.partition(f"{kind}:")[2].split() for kind in KINDS]
    # One that was not waited for has none.
    return sum(int(words[0]) for words in own) / 1e3 if all(own) else None


def descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != root:
        pid = parents[pid]
    return pid == root


def name(pid: int, names: dict[int, str]) -> str:
    if pid in names:
        return names[pid]
    command = (pathlib.Path("/proc") / str(pid) / "cmdline").read_bytes().decode()
    if "jigsaw_jax.reward.worker" in command:
        return "reward"
    return "Ray" if any(part in command for part in RAY) else "other"


def show(path: pathlib.Path, mb_max: float) -> bool:
    """Print each process's line; whether none rises."""
    print(path)
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    behind = [s for s in samples if s["update"] >= WARM_UP * samples[-1]["update"]]
    is_flat = True
    for process in sorted({name for sample in behind for name in sample["mb"]}):
        read = [(s["update"], s["mb"][process]) for s in behind if process in s["mb"]]
        if len(read) < len(behind) / 2:
            continue
        low = floors(read)
        rise = 100 * slope(low)
        is_ours = not process.startswith(("Ray", "other"))
        is_flat &= rise <= mb_max or not is_ours
        early, late = (max(part, default=0.0) for part in halves(behind, process))
        print(
            f"  {process:24} {low[0][1]:8.1f} to {low[-1][1]:8.1f} MB over "
            f"{read[-1][0] - read[0][0]} updates, {rise:+.2f} MB in 100, at most "
            f"{early:.1f} and {late:.1f}"
            f"{'' if rise <= mb_max else '  <- grows' if is_ours else '  (not ours)'}"
        )
    return is_flat


def floors(read: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """(update, MB) of the least reading in each span of updates."""
    start, end = read[0][0], read[-1][0] + 1
    spans: dict[int, list[tuple[int, float]]] = {}
    for update, mb in read:
        span = SPANS * (update - start) // (end - start)
        spans.setdefault(span, []).append((update, mb))
    return [min(span, key=lambda one: one[1]) for span in spans.values()]


def halves(samples: list[dict], process: str) -> tuple[list[float], list[float]]:
    """The most MB read, of each sample of the first and of the second half."""
    middle = (samples[0]["update"] + samples[-1]["update"]) / 2
    early: list[float] = []
    late: list[float] = []
    for sample in samples:
        if process in sample["most"]:
            part = early if sample["update"] < middle else late
            part.append(sample["most"][process])
    return early, late


def slope(low: list[tuple[int, float]]) -> float:
    """MB an update: the median over all pairs."""
    rises = [
        (later - earlier) / (last - first)
        for place, (first, earlier) in enumerate(low)
        for last, later in low[place + 1 :]
        if last > first
    ]
    return statistics.median(rises) if rises else 0.0


if __name__ == "__main__":
    sys.exit(main())
