"""The measured gap between trainer and sampler, and the frontier that closes it.

With X samples at a time on W workers each token takes s(X) = a + b X/W seconds. A
sample has L tokens on average, the longest of a group M, the longest of whichever group
ends first among X/G of them m(X), and the trainer needs T seconds a group. A round of R
groups of G samples then ends after about

    max( m(X) s(X) + R T ,  (R G L / X + M / 2) s(X) + 2 T )

The first term is the trainer's: it waits for the first group and is never idle again.
The second is the sampler's: its slots are full until the last samples run out, and the
groups that end with them train. Where a token
costs the same in any company (b = 0, small batches that wait for weights to be read)
all slots may as well be used. Where X samples share one rate (a = 0) more of them only
delay the first group. So X is F G, the frontier's F the largest of those that end the
round first.

How a step's time depends on company shows within a few steps of a run, as its first
sample starts a moment before the others. Until lengths and trainer are
measured too, X is W a/b, where the rate for each second that a sample takes is largest.
"""

from collections.abc import Sequence
from typing import Any

from jigsaw_jax.schedule.line import Line
from jigsaw_jax.settings import Pipeline

# The weight of the newest measurement.
NEWEST = 0.25
# Rounds that end later by less than this share end together.
TOLERANCE = 0.002
# Groups whose lengths are remembered.
GROUPS_MAX = 64


class Gap:
    """Measures a, b, L, M and T from events.

    Args:
      samples_per_group: G.
      width_min: the least F.
      width_max: the most; also R.

    Attributes:
      now_s: time of the latest event.
      running: samples that have a slot.
    """

    def __init__(
        self, *, samples_per_group: int, width_min: int, width_max: int
    ) -> None:
        self.now_s = 0.0
        self.running = 0
        self._slots = self._workers = 0
        self._samples_per_group = samples_per_group
        self._width_min = width_min
        self._width_max = max(width_min, width_max)
        self._limit = 0
        self._is_stale = True
        self._has_finished = False
        self._line = Line()
        # Mean and longest sample of each of the last groups.
        self._means: list[float] = []
        self._longest: list[int] = []
        self._train_s: float | None = None
        self._step_s: float | None = None
        self._busy_since_s = 0.0

    @property
    def limit(self) -> int:
        """X: how many samples may have a slot."""
        if self._is_stale:
            self._is_stale = False
            self._limit = self._find_limit()
        return self._limit

    @property
    def width(self) -> int:
        """F: the groups that so many samples come from, while none has finished."""
        return max(-(-self.limit // self._samples_per_group), 1)

    def see(self, now_s: float) -> None:
        """An event has this time; threads' clocks may be read out of turn."""
        self.now_s = max(self.now_s, now_s)

    # The sampler.

    def resized(self, slots: int, workers: int) -> None:
        """So many slots and workers are there now."""
        self._slots, self._workers = slots, workers
        self._is_stale = True

    def timed(self, sequences: int, step_s: float) -> None:
        """A decode step of a worker with so many sequences has taken so long."""
        if sequences > 0 and step_s > 0:
            self._line.add(float(sequences), step_s)
            # Later ones count from the next group on.
            self._is_stale = self._is_stale or not self._is_measured

    def entered(self, num: int = 1) -> None:
        """Samples have a slot."""
        self.running += num

    def left(self, num: int = 1, *, is_finished: bool) -> None:
        """They have none any more."""
        self.running -= num
        if is_finished and not self._has_finished:
            self._has_finished = self._is_stale = True

    def sampled(self, lengths: Sequence[int]) -> None:
        """A group is serving-complete, with so many tokens in each sample."""
        self._means.append(sum(lengths) / len(lengths))
        self._longest.append(max(lengths))
        del self._means[:-GROUPS_MAX], self._longest[:-GROUPS_MAX]
        self._is_stale = True

    # The trainer.

    def began(self) -> None:
        """The trainer has a command."""
        self._busy_since_s = self.now_s

    def accumulated(self, num: int) -> None:
        """It has added `num` groups to its gradients."""
        spent_s = self.now_s - self._busy_since_s
        self._train_s = _mean(self._train_s, spent_s / num)
        self._is_stale = True

    def stepped(self, num: int) -> None:
        """It has stepped over `num` groups."""
        spent_s = self.now_s - self._busy_since_s
        self._step_s = _mean(self._step_s, spent_s / num)
        self._is_stale = True

    @property
    def _is_measured(self) -> bool:
        """Whether all of a, b, L, M and T are known.

        The first groups that end are the short ones of those that began together.
        """
        num = len(self._longest)
        has_lengths = num > 0 and num * self._samples_per_group >= self._limit
        return self._line.is_known and has_lengths and self._train_s is not None

    def _find_limit(self) -> int:
        least = self._width_min * self._samples_per_group
        most = min(self._width_max * self._samples_per_group, max(self._slots, 1))
        least = min(least, most)
        if self._is_measured:
            limits = self._limits(least, most)
            near_s = min(map(self._round_s, limits)) * (1 + TOLERANCE)
            return max(x for x in limits if self._round_s(x) <= near_s)
        if self._line.is_known:
            return int(min(max(self._workers * self._line.knee, least), most))
        if self._has_finished:
            # Nobody reports the times of steps, or only one size of batch is possible.
            return most
        if self._line.has_points:
            # Two of a worker tell what company costs, if one has shown it alone.
            return min(max(least, 2 * self._workers), most)
        return 1

    def _limits(self, least: int, most: int) -> list[int]:
        """Those of every F up to eight, then in steps of an eighth."""
        size = self._samples_per_group
        width, limits = self._width_min, [least]
        while limits[-1] < most:
            width += max(width // 8, 1)
            limits.append(min(width * size, most))
        return limits

    def _round_s(self, limit: int) -> float:
        """Seconds of a round with so many samples at a time."""
        assert self._train_s is not None
        train_s = self._train_s + (self._step_s or 0.0)
        token_s = self._line.at(max(limit / max(self._workers, 1), 1.0))
        mean = sum(self._means) / len(self._means)
        round_tokens = self._width_max * self._samples_per_group * mean
        first_s = self._first_tokens(limit / self._samples_per_group) * token_s
        steps = round_tokens / limit + self._first_tokens(1.0) / 2
        return max(first_s + self._width_max * train_s, steps * token_s + 2 * train_s)

    def _first_tokens(self, num: float) -> float:
        """Mean of the smallest of `num` groups' longest, drawn from the last ones."""
        lengths, size = sorted(self._longest), len(self._longest)
        # The share of such draws in which all are at least the i-th.
        shares = [(1 - i / size) ** max(num, 1.0) for i in range(size + 1)]
        return sum(
            length * (shares[i] - shares[i + 1]) for i, length in enumerate(lengths)
        )

    def snapshot(self) -> dict[str, Any]:
        """JSON values: what was measured, without any clock reading."""
        return {
            "line": self._line.snapshot(),
            "means": list(self._means),
            "longest": list(self._longest),
            "train_s": self._train_s,
            "step_s": self._step_s,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over a snapshot."""
        self._line.restore(snapshot["line"])
        # A snapshot of before they were kept has none.
        self._means = list(snapshot.get("means", ()))
        self._longest = list(snapshot.get("longest", ()))
        self._train_s = snapshot["train_s"]
        self._step_s = snapshot["step_s"]
        self._is_stale = True


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + NEWEST * (value - mean)


def gap_of(settings: Pipeline) -> Gap:
    """Of a run; a frontier never has more groups than may be open at once."""
    paced = (settings.staleness_max + 1) * settings.groups_per_update
    return Gap(
        samples_per_group=settings.samples_per_group,
        width_min=settings.frontier_groups,
        width_max=paced if settings.mode == "async" else settings.groups_per_round,
    )
