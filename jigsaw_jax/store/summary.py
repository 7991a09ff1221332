"""summary.json and the interval arithmetic behind its times: pure functions.

An interval is (start_s, end_s) on one clock. Wherever intervals overlap, as those of
decode slots do, the time counts once.
"""

import dataclasses
import os
import pathlib
import resource
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from jigsaw_jax.store.metrics import plain

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in a few numbers; None where there is nothing to tell.

    Attributes:
      updates: optimizer updates that are through, skipped ones included.
      rounds: rounds that are through.
      versions: weight versions published, the first included.
      groups_committed: groups in durable updates.
      groups_dropped: groups that ended untrained, by reason.
      eval_accuracy_first: held-out accuracy before the first update.
      eval_accuracy_last: held-out accuracy of the last evaluation.
      sampled_tokens_per_s: while the sampler ran, first update excluded.
      loop_tokens_per_s: sampled tokens over the wall time of all but the first update.
      trainer_wait_ratio: wait / (wait + compute) of the whole run.
      rollout_to_train_end_s_median: over rounds.
      first_step_s: from the start of the loop to the end of the first update.
      process_start_to_first_step_s: the same from the start of the process.
      compilations_after_warmup: of any device program after the first update.
      logprob_abs_diff_max: learner against sampler under equal versions.
      peak_rss_mb: summed over our processes.
      wall_s: of the whole run.
    """

    updates: int
    rounds: int
    versions: int
    groups_committed: int
    groups_dropped: dict[str, int]
    eval_accuracy_first: float | None
    eval_accuracy_last: float | None
    sampled_tokens_per_s: float | None
    loop_tokens_per_s: float | None
    trainer_wait_ratio: float | None
    rollout_to_train_end_s_median: float | None
    first_step_s: float | None
    process_start_to_first_step_s: float | None
    compilations_after_warmup: int
    logprob_abs_diff_max: float | None
    peak_rss_mb: float
    wall_s: float

    def as_json(self, **more: Any) -> dict[str, Any]:
        """The JSON object, NaN as null; `more` adds fields of the caller's own."""
        fields = dataclasses.asdict(self) | more
        return {name: plain(value) for name, value in fields.items()}


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals as disjoint ones, ascending; empty ones vanish."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def covered_s(intervals: Iterable[Interval]) -> float:
    """Seconds that at least one of the intervals covers."""
    return sum(end - start for start, end in merge(intervals))


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of intervals inside `window`; what lies outside vanishes."""
    pairs = ((max(a, window[0]), min(b, window[1])) for a, b in intervals)
    return [(start, end) for start, end in pairs if start < end]


def overlap_s(some: Iterable[Interval], others: Iterable[Interval]) -> float:
    """Seconds covered by both sets, for example by sampler and learner at once."""
    left, right = merge(some), merge(others)
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
    wait_s, compute_s = covered_s(waits), covered_s(computes)
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


def idle_ratio(busy: Iterable[Interval], window: Interval) -> float:
    """Share of `window` in which none of `busy` was under way; 0 if it is empty."""
    length_s = window[1] - window[0]
    return 1 - covered_s(clip(busy, window)) / length_s if length_s > 0 else 0.0


def tokens_per_s(
    calls: Iterable[tuple[float, float, int]], *, after_s: float = float("-inf")
) -> float | None:
    """Sampled tokens over the time in which the sampler ran, learner beside it or not.

    Args:
      calls: (start_s, end_s, tokens) of every prefill and decode call.
      after_s: leave out calls that start before, such as those of the first update.

    Returns:
      The rate, or None where no call is left.
    """
    counted = [call for call in calls if call[0] >= after_s]
    busy_s = covered_s((start, end) for start, end, _ in counted)
    return sum(tokens for _, _, tokens in counted) / busy_s if busy_s else None


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
