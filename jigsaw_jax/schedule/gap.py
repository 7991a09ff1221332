"""The measured gap between trainer and sampler, and the frontier that closes it.

By Little's law a sampler that has F groups in flight, each for W seconds, delivers F/W
groups a second, and a trainer that spends T seconds a group takes 1/T. The narrowest
frontier that keeps the trainer fed is therefore

    F = ceil(margin W / T)

A narrower one starves the trainer. A wider one shares the sampler among more groups, so
that the first of a round, for which the trainer waits idle, comes later. Where the
sampler is the slower of the two, W grows with F until the frontier has every group, and
no slot is kept free. The margin answers what the law leaves out, uneven lengths: it
rises when the trainer has waited between two groups of a round, and falls when groups
pile up before it.
"""

import math
from typing import Any

# The weight of the newest measurement.
NEWEST = 0.25
MARGIN_STEP = 1.25
MARGIN_MAX = 4.0
# A shorter wait, as a share of the trainer's time for a group, is chance. A sampler
# that shares one rate delivers later the wider the frontier is.
SHORT = 0.2
# Groups left waiting behind a hand-off that are more than the trainer needs.
PILED = 2


class Gap:
    """Measures W and T from the times of events.

    Args:
      width_min: F before both are measured, and the least.
      width_max: the most.

    Attributes:
      now_s: time of the latest event.
    """

    def __init__(self, *, width_min: int, width_max: int) -> None:
        self.now_s = 0.0
        self._width_min = width_min
        self._width_max = max(width_min, width_max)
        self._margin = 1.0
        self._sample_s: float | None = None
        self._train_s: float | None = None
        self._step_s = 0.0
        self._busy_since_s = 0.0
        # When the trainer ran dry in the middle of a round.
        self._idle_since_s: float | None = None

    @property
    def width(self) -> int:
        """F."""
        if self._sample_s is None or self._train_s is None:
            return self._width_min
        train_s = self._train_s + self._step_s
        needed_s = self._margin * self._sample_s
        if needed_s >= self._width_max * train_s:
            return self._width_max
        return max(math.ceil(needed_s / train_s), self._width_min)

    def see(self, now_s: float) -> None:
        """An event has this time; threads' clocks may be read out of turn."""
        self.now_s = max(self.now_s, now_s)

    def sampled(self, since_s: float) -> None:
        """A group whose first request entered at `since_s` is serving-complete."""
        self._sample_s = _mean(self._sample_s, self.now_s - since_s)

    def handed(self, *, num_left: int) -> None:
        """Groups go to the trainer, and `num_left` still wait."""
        if self._has_waited():
            self._margin = min(self._margin * MARGIN_STEP, MARGIN_MAX)
        elif num_left >= PILED:
            self._margin = max(self._margin / MARGIN_STEP, 1.0)
        self._idle_since_s = None
        self._busy_since_s = self.now_s

    def _has_waited(self) -> bool:
        if self._idle_since_s is None:
            return False
        return self.now_s - self._idle_since_s > SHORT * (self._train_s or 0.0)

    def accumulated(self, num: int) -> None:
        """The trainer has added `num` groups to its gradients."""
        spent_s = self.now_s - self._busy_since_s
        self._train_s = _mean(self._train_s, spent_s / num)
        self._idle_since_s = self.now_s

    def step_began(self) -> None:
        """The trainer steps."""
        self._busy_since_s = self.now_s

    def stepped(self, num: int) -> None:
        """The trainer has stepped over `num` groups."""
        spent_s = self.now_s - self._busy_since_s
        self._step_s = _mean(self._step_s or None, spent_s / num)
        self._idle_since_s = self.now_s

    def round_over(self) -> None:
        """What the trainer waits for now is a new round's first group."""
        self._idle_since_s = None

    def snapshot(self) -> dict[str, Any]:
        """JSON values: what was measured, without any clock reading."""
        return {
            "margin": self._margin,
            "sample_s": self._sample_s,
            "train_s": self._train_s,
            "step_s": self._step_s,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over a snapshot."""
        self._margin = snapshot["margin"]
        self._sample_s = snapshot["sample_s"]
        self._train_s = snapshot["train_s"]
        self._step_s = snapshot["step_s"]


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + NEWEST * (value - mean)
