"""The requests that wait for a slot, and in which order they may enter.

"arrival" is first come, first served. "longest_first" lets the requests of prompts with
long completions enter first, so that none of them is what a round waits for in the end.
How long a prompt's completions are is learned from those that have finished: a group's
first request probes it, and until one has finished the prompt counts as long.
"""

import bisect
import heapq
from collections.abc import Iterable

from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.lengths import Lengths

# Smaller enters first.
Rank = tuple[int, float, int]
Arrival = tuple[int, list[SampleId]]
# Outdated ranks that are kept in any case.
SPARE = 64


class Requests:
    """The requests that wait, and the groups of O.

    Args:
      lengths: estimates for "longest_first"; None keeps the order of arrival.
      is_by_order: whether, instead of that, the lowest order is first.
    """

    def __init__(
        self, lengths: Lengths | None = None, *, is_by_order: bool = False
    ) -> None:
        self._lengths = lengths
        self._is_by_order = is_by_order
        self._orders: list[int] = []
        # Of each group, what arrived together: its place in line, and the requests.
        self._waiting: dict[int, list[Arrival]] = {}
        self._arrivals = self._put_back = 0
        self._probed: set[int] = set()
        # Every rank that a waiting group had; only its current one counts.
        self._ranked: list[tuple[Rank, int]] = []
        # What `first` said last, while nothing has changed since.
        self._first: int | None = None

    def add(self, order: int, samples: Iterable[SampleId]) -> None:
        """Let requests of a group arrive, behind all that wait; retries too."""
        place = bisect.bisect_left(self._orders, order)
        if self._orders[place : place + 1] != [order]:
            self._orders.insert(place, order)
        self._waiting.setdefault(order, []).append((self._arrivals, list(samples)))
        self._arrivals += 1
        self.rank(order)

    def put_back(self, order: int, sample: SampleId) -> None:
        """Let a request that had entered wait again, before all others."""
        self._put_back -= 1
        self._waiting.setdefault(order, []).insert(0, (self._put_back, [sample]))
        self.rank(order)

    def withdraw(self, order: int, sample: SampleId) -> None:
        """Let a request that waits go."""
        waiting = self._waiting[order]
        arrival = next(one for one in waiting if sample in one[1])
        arrival[1].remove(sample)
        if not arrival[1]:
            waiting.remove(arrival)
        if not waiting:
            del self._waiting[order]
        self.rank(order)

    def take(self, order: int, num: int = 1) -> list[SampleId]:
        """Take the earliest requests of a group that has one.

        Args:
          order: of the group.
          num: how many, positive; fewer where the next is not of the same rank.

        Returns:
          At least one, in order.
        """
        # Whoever fills slots would go on for ever.
        assert num > 0, num
        waiting = self._waiting[order]
        samples = waiting[0][1]
        if self._lengths is None and len(samples) > num:
            # What arrived together has one rank.
            taken = samples[:num]
            del samples[:num]
            return taken
        self._first = None
        if self._lengths is None or len(samples) == 1:
            taken = samples
            del waiting[0]
            if not waiting:
                del self._waiting[order]
        else:
            taken = [samples.pop(0)]
        if self._lengths is not None:
            self._probed.add(order)
        if self._ranked and self._ranked[0][1] == order:
            # Usually the one that `first` has just named: outdated as it is by now,
            # its place at the top saves looking for another's.
            self._replace_first(order)
        else:
            self.rank(order)
        return taken

    def _replace_first(self, order: int) -> None:
        if order in self._waiting:
            heapq.heapreplace(self._ranked, (self._rank(order), order))
        else:
            heapq.heappop(self._ranked)

    def remove(self, order: int) -> None:
        """The group leaves O: it is serving-complete, or has ended."""
        place = bisect.bisect_left(self._orders, order)
        if self._orders[place : place + 1] == [order]:
            del self._orders[place]
        self._waiting.pop(order, None)
        self._probed.discard(order)
        self._first = None

    def rank(self, order: int) -> None:
        """Note that what the group's rank depends on may have changed."""
        self._first = None
        if order not in self._waiting:
            return
        heapq.heappush(self._ranked, (self._rank(order), order))
        if len(self._ranked) > 4 * len(self._waiting) + SPARE:
            self._ranked = [(self._rank(o), o) for o in self._waiting]
            heapq.heapify(self._ranked)

    def frontier(self, width: int) -> list[int]:
        """The lowest orders of O, at most `width` of them."""
        return self._orders[:width]

    def first_of(self, orders: Iterable[int]) -> int | None:
        """Which of these groups has the request that may enter first, or None."""
        waiting = [order for order in orders if order in self._waiting]
        return min(waiting, key=self._rank, default=None)

    def first(self) -> int | None:
        """Which group of all has the request that may enter first, or None."""
        if self._first is not None:
            return self._first
        while self._ranked:
            rank, order = self._ranked[0]
            if order in self._waiting and self._rank(order) == rank:
                self._first = order
                return order
            heapq.heappop(self._ranked)
            # Another group of the same prompt may have changed the estimate.
            self.rank(order)
        return None

    def _rank(self, order: int) -> Rank:
        arrival, samples = self._waiting[order][0]
        if arrival < 0:
            # It has entered before.
            return -1, 0.0, arrival
        if self._lengths is None:
            return 0, float(order) if self._is_by_order else 0.0, arrival
        estimate = self._lengths.estimate(samples[0].uid)
        if estimate is None:
            return int(order in self._probed), 0.0, arrival
        return 2, -estimate, arrival
