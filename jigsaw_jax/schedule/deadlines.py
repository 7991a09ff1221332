"""When a sample that was sent out counts as lost."""

import math
from collections.abc import Iterable

from jigsaw_jax.schedule.groups import Member, OpenGroup, when_sent


class Deadlines:
    """Finds who has not answered in time.

    All have the same time to answer, from when they were sent out last. When that was
    is in the groups alone: nothing is to be kept in order while all are in time, and
    all are looked at once when the first of them would be late.

    Args:
      after_s: what a worker or a reward may take to answer; 0 waits for ever.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        # Nobody is due before.
        self._next_s = math.inf

    def sent(self, now_s: float) -> None:
        """Something is sent out now, which is no earlier than what was before."""
        if self._after_s and self._next_s == math.inf:
            self._next_s = now_s + self._after_s

    def due(
        self, groups: Iterable[OpenGroup], now_s: float
    ) -> list[tuple[OpenGroup, Member]]:
        """What is overdue.

        Args:
          groups: all.
          now_s: the time.

        Returns:
          Samples with their groups, in the order in which they were sent out.
        """
        if now_s < self._next_s:
            return []
        overdue: list[tuple[OpenGroup, Member]] = []
        self._next_s = math.inf
        for group in groups:
            for member in group.members:
                if member.since_s is None:
                    continue
                end_s = member.since_s + self._after_s
                if end_s <= now_s:
                    overdue.append((group, member))
                else:
                    self._next_s = min(self._next_s, end_s)
        return sorted(overdue, key=when_sent)
