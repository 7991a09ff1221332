"""When a sample that was sent out counts as lost."""

import heapq
from collections.abc import Iterator

from jigsaw_jax.records import SampleId

# Outdated deadlines that are kept in any case.
SPARE = 64


class Deadlines:
    """One deadline a sample, the newest that was set.

    Args:
      after_s: what a worker or a reward may take to answer; 0 waits for ever.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._ends: dict[SampleId, int] = {}
        # By time, then by when it was set; only the newest of a sample counts.
        self._heap: list[tuple[float, int, SampleId]] = []
        self._num_set = 0

    def set(self, sample: SampleId, now_s: float) -> None:
        """The sample is sent out now."""
        if not self._after_s:
            return
        self._num_set += 1
        self._ends[sample] = self._num_set
        heapq.heappush(self._heap, (now_s + self._after_s, self._num_set, sample))
        if len(self._heap) > 4 * len(self._ends) + SPARE:
            self._heap = [e for e in self._heap if self._ends.get(e[2]) == e[1]]
            heapq.heapify(self._heap)

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
        while self._heap and self._heap[0][0] <= now_s:
            _, number, sample = heapq.heappop(self._heap)
            if self._ends.get(sample) == number:
                del self._ends[sample]
                yield sample
