"""The record of one update for metrics.jsonl, from groups, intervals and counts.

Every completion is in the record of exactly one update: the one that trained its
group or, for a group that was dropped, the next one.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence, Sized

from jigsaw_jax.records import Group
from jigsaw_jax.store.summary import clipped, union, union_s

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What happened between the ends of two updates.

    start_s: end of the update before, or the run's first admission.
    end_s: end of this update.
    learner_s: of it, in which the learner computed.
    sampler_s: of it, in which the sampler computed.
    sampled_tokens: drawn in the window.
    """

    start_s: float
    end_s: float
    learner_s: float
    sampler_s: float
    sampled_tokens: int

    @property
    def length_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


def busy_s(intervals: Iterable[Interval], start_s: float, end_s: float) -> float:
    """Seconds between two times that the intervals cover."""
    return union_s(clipped(union(intervals), start_s, end_s))


class Completions:
    """The completions of one update, added a group at a time.

    Groups end one by one while an update is filled, so that little is left to do at its
    step. Every number is kept: sums are of all at once, and so exact, and the same in
    whatever order groups came.
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._truncated: list[bool] = []
        self._rewards: list[float | None] = []
        self._parts: dict[str, list[float | None]] = collections.defaultdict(list)
        # Of each group.
        self._is_equal: list[bool] = []

    def add(self, group: Group) -> None:
        """Count a group that has ended."""
        self._lengths += [sample.num_sampled for sample in group.samples]
        self._truncated += [sample.is_truncated for sample in group.samples]
        rewards = [score.value for score in group.scores]
        self._rewards += rewards
        self._is_equal.append(is_zero_variance(rewards))
        parts = self._parts
        for score in group.scores:
            for name, part in score.parts.items():
                parts[name].append(part)

    def merge(self, other: "Completions") -> None:
        """Count all that the other one has counted."""
        self._lengths += other._lengths
        self._truncated += other._truncated
        self._rewards += other._rewards
        self._is_equal += other._is_equal
        for name, parts in other._parts.items():
            self._parts[name] += parts

    @property
    def num_tokens(self) -> int:
        """Tokens that were sampled."""
        return sum(self._lengths)

    def metrics(self) -> dict[str, float]:
        """Rewards, lengths, and the share of groups whose rewards are all equal.

        A missing reward is in no mean; lengths count sampled tokens alone.
        """
        rewards = _there(self._rewards)
        parts = {name: _there(self._parts[name]) for name in sorted(self._parts)}
        return {
            "reward/mean": mean(rewards),
            "reward/std": std(rewards),
            **{f"reward/{name}": mean(values) for name, values in parts.items()},
            "completion/length_mean": _share(self.num_tokens, self._lengths),
            "completion/length_max": float(max(self._lengths, default=0)),
            "completion/truncated_ratio": _share(sum(self._truncated), self._truncated),
            "reward/missing": float(len(self._rewards) - len(rewards)),
            "group/zero_variance_ratio": _share(sum(self._is_equal), self._is_equal),
        }


def is_zero_variance(rewards: Iterable[float | None]) -> bool:
    """Whether all rewards that are there are equal: the group teaches nothing."""
    return len(set(rewards) - {None}) <= 1


def time_metrics(window: Window, *, trained_tokens: int) -> dict[str, float]:
    """Waiting, idling and goodput of a window."""
    length_s = max(window.length_s, 1e-9)
    return {
        "time/update_s": window.length_s,
        "time/wait_s": window.length_s - window.learner_s,
        "pipeline/trainer_wait_ratio": 1 - window.learner_s / length_s,
        "pipeline/sampler_idle_ratio": 1 - window.sampler_s / length_s,
        "pipeline/goodput_tokens_per_s": trained_tokens / length_s,
        "tokens/sampled": window.sampled_tokens,
    }


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    return _share(math.fsum(values), values)


def std(values: Sequence[float]) -> float:
    """Population standard deviation; NaN of nothing."""
    center = mean(values)
    return math.sqrt(mean([(off := value - center) * off for value in values]))


def _share(total: float | int, values: Sized) -> float:
    return total / len(values) if values else math.nan


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
