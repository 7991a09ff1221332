"""The record of one update for metrics.jsonl, from groups, intervals and counts.

Every completion is in the record of exactly one update: the one that trained its
group or, for a group that was dropped, the next one.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from jigsaw_jax.records import Sample, Score
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


def completion_metrics(
    samples: Sequence[Sample], scores: Sequence[Score]
) -> dict[str, float]:
    """Rewards and lengths of the completions of one update.

    A missing reward is in no mean; lengths count sampled tokens alone.
    """
    values: list[float] = []
    parts: collections.defaultdict[str, list[float]] = collections.defaultdict(list)
    for score in scores:
        if score.value is not None:
            values.append(score.value)
        for name, part in score.parts.items():
            # A name is there also where no reward of it is.
            known = parts[name]
            if part is not None:
                known.append(part)
    metrics = {"reward/mean": mean(values), "reward/std": std(values)}
    metrics |= {f"reward/{name}": mean(parts[name]) for name in sorted(parts)}
    lengths = [float(sample.num_sampled) for sample in samples]
    truncated = [float(sample.is_truncated) for sample in samples]
    return metrics | {
        "completion/length_mean": mean(lengths),
        "completion/length_max": max(lengths, default=0.0),
        "completion/truncated_ratio": mean(truncated),
        "reward/missing": float(len(scores) - len(values)),
    }


def is_zero_variance(scores: Sequence[Score]) -> bool:
    """Whether all rewards that are there are equal: the group teaches nothing."""
    values = [score.value for score in scores if score.value is not None]
    return not values or max(values) == min(values)


def group_metrics(scores_of_groups: Sequence[Sequence[Score]]) -> dict[str, float]:
    """Share of groups whose rewards are all equal."""
    equal = [float(is_zero_variance(scores)) for scores in scores_of_groups]
    return {"group/zero_variance_ratio": mean(equal)}


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
    return math.fsum(values) / len(values) if values else math.nan


def std(values: Sequence[float]) -> float:
    """Population standard deviation; NaN of nothing."""
    center = mean(values)
    return math.sqrt(mean([(value - center) ** 2 for value in values]))


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """Floats and integers of the standard library, so that JSON takes them."""
    return {k: v.item() if hasattr(v, "item") else v for k, v in record.items()}
