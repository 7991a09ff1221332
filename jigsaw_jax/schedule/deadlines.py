"""When a sample that was sent out counts as lost."""

import collections
from collections.abc import Iterator

from jigsaw_jax.records import SampleId


class Deadlines:
    """One deadline a sample, the newest that was set.

    All have the same time to answer, so the one that was set first is due first.

    Args:
      after_s: what a worker or a reward may take to answer; 0 waits for ever.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._ends: collections.OrderedDict[SampleId, float] = collections.OrderedDict()

    def set(self, sample: SampleId, now_s: float) -> None:
        """The sample is sent out now, which is no earlier than the one before."""
        if self._after_s:
            self._ends[sample] = now_s + self._after_s
            self._ends.move_to_end(sample)

    def clear(self, sample: SampleId) -> None:
        """The sample is back, or was called back."""
        self._ends.pop(sample, None)

    def due(self, now_s: float) -> Iterator[SampleId]:
        """Take out what is overdue, one by one.

        Args:
          now_s: the time.

        Yields:
          Samples whose deadline has passed and still counts.
        """
        while self._ends and next(iter(self._ends.values())) <= now_s:
            yield self._ends.popitem(last=False)[0]
