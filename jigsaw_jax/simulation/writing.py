"""A checkpoint that is written in the background, on the core on which the learner is.

save |---- beside the learner: both are slower ----|---- while it waits ----| there
"""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What it takes to write a checkpoint behind the learner's back.

    Attributes:
      alone_s: while the learner waits, from the start of its save.
      held: share of its speed that the writing loses while the learner computes.
      lost: share of its speed that the learner loses meanwhile.
    """

    alone_s: float = 0.0
    held: float = 0.0
    lost: float = 0.0


class Writer:
    """What is left to be written at each time, as the learner's thread meets it.

    Args:
      writing: costs.
      log: told when a checkpoint began and when it was there.
    """

    def __init__(self, writing: Writing, log: Callable[[float, float], None]) -> None:
        self._writing = writing
        self._log = log
        self._begun_s = 0.0
        # What is left, in seconds beside a learner that waits, and when that was so.
        self._left_s = self._at_s = 0.0

    def begin(self, start_s: float) -> float:
        """A save is due; it waits for the one before to be written.

        Args:
          start_s: when it is.

        Returns:
          When it begins.
        """
        self._wait_until(start_s)
        begun_s = start_s + self._left_s
        self._wait_until(begun_s)
        self._begun_s, self._left_s = begun_s, self._writing.alone_s
        return begun_s

    def compute(self, start_s: float, seconds: float) -> float:
        """The learner works.

        Args:
          start_s: when it begins.
          seconds: that it takes where nothing is written.

        Returns:
          When it is done.
        """
        self._wait_until(start_s)
        writes, learns = 1 - self._writing.held, 1 - self._writing.lost
        both_s = min(self._left_s / writes, seconds / learns)
        is_over = both_s * learns < seconds
        self._go(start_s + both_s, self._left_s if is_over else both_s * writes)
        self._at_s = start_s + both_s + (seconds - both_s * learns if is_over else 0.0)
        return self._at_s

    def _wait_until(self, time_s: float) -> None:
        written_s = min(max(time_s - self._at_s, 0.0), self._left_s)
        self._go(self._at_s + written_s, written_s)
        self._at_s = max(time_s, self._at_s)

    def _go(self, end_s: float, written_s: float) -> None:
        if self._left_s and written_s >= self._left_s:
            self._log(self._begun_s, end_s)
        self._left_s = max(self._left_s - written_s, 0.0)
