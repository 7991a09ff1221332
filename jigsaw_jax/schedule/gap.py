"""The measured gap between trainer and sampler, and the frontier that closes it.

With F groups in flight, x samples decode together and each token takes s(x) = a + b x
seconds; the longest sample of a group has M tokens, a sample L on average, and the
trainer needs T seconds a group. A round of R groups then ends after

    max( M s(x) + R T ,  R G L s(x) / x + T ),     x = min(G F L/M, slots)

The first term is the trainer's: it waits for the first group and is never idle again.
The second is the sampler's: it is never idle, and the last group trains. Where a token
costs the same in any company (b = 0, small batches that wait for weights to be read) a
wide frontier is free. Where x samples share one rate (a = 0) it only delays the first
group. The frontier is the widest of those that end the round first.
"""

from collections.abc import Collection
from typing import Any

from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.line import Line

# The weight of the newest measurement.
NEWEST = 0.25
# Rounds that end later by less than this share end together.
TOLERANCE = 0.002


class Gap:
    """Measures a, b, L, M and T from the times of events.

    Args:
      samples_per_group: G.
      width_min: F before all is measured, and the least.
      width_max: the most; also R.

    Attributes:
      now_s: time of the latest event.
      slots: of all workers together.
    """

    def __init__(
        self, *, samples_per_group: int, width_min: int, width_max: int
    ) -> None:
        self.now_s = 0.0
        self.slots = 0
        self._samples_per_group = samples_per_group
        self._width = self._width_min = width_min
        self._is_stale = False
        self._width_max = max(width_min, width_max)
        self._line = Line()
        self._mean_tokens: float | None = None
        self._longest_tokens: float | None = None
        self._train_s: float | None = None
        self._step_s: float | None = None
        self._busy_since_s = 0.0
        # Samples that decode: since when, the integral of their number over time at
        # that moment, and whether from the first token. The integral until now.
        self._running: dict[SampleId, tuple[float, float, bool]] = {}
        self._area = 0.0

    @property
    def width(self) -> int:
        """F."""
        if self._is_stale:
            self._is_stale = False
            self._widen()
        return self._width

    def see(self, now_s: float) -> None:
        """An event has this time; threads' clocks may be read out of turn."""
        if now_s > self.now_s:
            self._area += len(self._running) * (now_s - self.now_s)
            self.now_s = now_s

    # The sampler.

    def entered(self, sample: SampleId, *, is_whole: bool) -> None:
        """The sample decodes from now on, from its first token or in its middle."""
        self._running[sample] = self.now_s, self._area, is_whole

    def left(self, sample: SampleId, num_tokens: int = 0) -> None:
        """It decodes no more; `num_tokens` where it has finished."""
        since_s, area, is_whole = self._running.pop(sample)
        spent_s = self.now_s - since_s
        if num_tokens and is_whole and spent_s > 0:
            self._line.add((self._area - area) / spent_s, spent_s / num_tokens)

    def sampled(self, lengths: Collection[int]) -> None:
        """A group is serving-complete, with so many tokens in each sample."""
        mean = sum(lengths) / len(lengths)
        self._mean_tokens = _mean(self._mean_tokens, mean)
        self._longest_tokens = _mean(self._longest_tokens, float(max(lengths)))
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

    def _widen(self) -> None:
        if self._mean_tokens is None or self._train_s is None:
            return
        best_s = min(self._round_s(width) for width in self._widths())
        near_s = best_s * (1 + TOLERANCE)
        self._width = max(w for w in self._widths() if self._round_s(w) <= near_s)

    def _widths(self) -> list[int]:
        """Every width up to eight, then in steps of an eighth."""
        widths = [self._width_min]
        while widths[-1] < self._width_max:
            widths.append(min(widths[-1] + max(widths[-1] // 8, 1), self._width_max))
        return widths

    def _round_s(self, width: int) -> float:
        """Seconds of a round with a frontier of this width."""
        assert self._mean_tokens is not None
        assert self._longest_tokens is not None
        assert self._train_s is not None
        train_s = self._train_s + (self._step_s or 0.0)
        group_tokens = self._samples_per_group * self._mean_tokens
        together = width * group_tokens / self._longest_tokens
        together = max(min(together, float(self.slots)), 1.0)
        token_s = self._line.at(together)
        rollout_s = self._width_max * group_tokens * token_s / together
        first_s = self._longest_tokens * token_s
        return max(first_s + self._width_max * train_s, rollout_s + train_s)

    def snapshot(self) -> dict[str, Any]:
        """JSON values: what was measured, without any clock reading."""
        return {
            "width": self.width,
            "line": self._line.snapshot(),
            "mean_tokens": self._mean_tokens,
            "longest_tokens": self._longest_tokens,
            "train_s": self._train_s,
            "step_s": self._step_s,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over a snapshot, within the limits of now."""
        width = min(snapshot["width"], self._width_max)
        self._width = max(width, self._width_min)
        self._line.restore(snapshot["line"])
        self._mean_tokens = snapshot["mean_tokens"]
        self._longest_tokens = snapshot["longest_tokens"]
        self._train_s = snapshot["train_s"]
        self._step_s = snapshot["step_s"]


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + NEWEST * (value - mean)
