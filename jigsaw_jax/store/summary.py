"""The interval arithmetic behind a run's times, and its peak memory.

An interval is (start_s, end_s) on one clock. Wherever intervals overlap, as those of
decode slots do, the time counts once.
"""

import math
import os
import pathlib
import resource
import sys
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals as disjoint ones, ascending; empty ones vanish."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def union_s(intervals: Iterable[Interval]) -> float:
    """Seconds that at least one of the intervals covers."""
    return math.fsum(end - start for start, end in union(intervals))


def clipped(
    intervals: Iterable[Interval], start_s: float, end_s: float
) -> list[Interval]:
    """The parts of intervals between two times; what lies outside vanishes."""
    pairs = ((max(a, start_s), min(b, end_s)) for a, b in intervals)
    return [(start, end) for start, end in pairs if start < end]


def overlap_s(some: Iterable[Interval], others: Iterable[Interval]) -> float:
    """Seconds covered by both sets, for example by sampler and learner at once."""
    left, right = union(some), union(others)
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        total += max(0.0, end - start)
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total


def trainer_wait_ratio(
    waits: Iterable[Interval], computes: Iterable[Interval]
) -> float:
    """Wait / (wait + compute) of the learner; 0 where it did neither."""
    wait_s, compute_s = union_s(waits), union_s(computes)
    both_s = wait_s + compute_s
    return wait_s / both_s if both_s else 0.0


def rollout_to_train_end_s(rollout_start_s: float, trains: Sequence[Interval]) -> float:
    """From the start of a round's sampling to the end of its last gradient or step.

    Publishing, checkpoints and evaluation are not training: leave them out.
    """
    return max(end for _, end in trains) - rollout_start_s


def first_dispatch_s(rollout_start_s: float, trains: Sequence[Interval]) -> float:
    """From the start of a round's sampling to the start of its first gradient."""
    return min(start for start, _ in trains) - rollout_start_s


def peak_rss_mb(pids: Iterable[int] | None = None) -> float:
    """Peak resident memory summed over processes, in 10^6 bytes.

    Pages that processes share count once for each. A child that has ended is not seen.

    Args:
      pids: of the processes; None takes this one and all its descendants.

    Returns:
      The sum of the peaks. Without /proc (macOS): this process and its largest ended
      child.
    """
    if not pathlib.Path("/proc/self/status").exists():
        unit = 1 if sys.platform == "darwin" else 1024
        who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(resource.getrusage(one).ru_maxrss for one in who) * unit / 1e6
    if pids is None:
        pids = [os.getpid(), *_descendants(os.getpid())]
    return sum(_peak_kib(pid) for pid in pids) * 1024 / 1e6


def _peak_kib(pid: int) -> int:
    for line in _proc_text(pid, "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            # The parent's id is the second field behind the name in parentheses,
            # which may itself hold spaces and parentheses.
            fields = _proc_text(int(entry.name), "stat").rpartition(")")[2].split()
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.append(child)
            waiting.append(child)
    return found


def _proc_text(pid: int, name: str) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        # The process ended meanwhile.
        return ""
