"""Which waiting request enters the sampler next.

O is the set of groups that have arrived and are not serving-complete; the frontier is
the F members of O with the lowest submission index. Source: RolloutPipe
(arXiv 2606.26997), frontier-group dispatch; "priority" is our reading of its figures.
"""

import bisect
import collections
import dataclasses
from collections.abc import Iterable

from jigsaw_jax.records import SampleId
from jigsaw_jax.settings import Pipeline


class Requests:
    """The requests that wait, in arrival order, and the groups of O."""

    def __init__(self) -> None:
        self._orders: list[int] = []
        self._waiting: dict[int, collections.deque[tuple[int, SampleId]]] = {}
        self._arrivals = 0

    def add(self, order: int, samples: Iterable[SampleId]) -> None:
        """Let requests of a group arrive, behind all that wait; retries too."""
        place = bisect.bisect_left(self._orders, order)
        if self._orders[place : place + 1] != [order]:
            self._orders.insert(place, order)
        waiting = self._waiting.setdefault(order, collections.deque())
        for sample in samples:
            waiting.append((self._arrivals, sample))
            self._arrivals += 1

    def pop(self, order: int) -> SampleId:
        """Take the earliest request of a group that has one."""
        waiting = self._waiting[order]
        _, sample = waiting.popleft()
        if not waiting:
            del self._waiting[order]
        return sample

    def remove(self, order: int) -> None:
        """The group leaves O: it is serving-complete, or has ended."""
        place = bisect.bisect_left(self._orders, order)
        if self._orders[place : place + 1] == [order]:
            del self._orders[place]
        self._waiting.pop(order, None)

    def frontier(self, width: int) -> list[int]:
        """The lowest orders of O, at most `width` of them."""
        return self._orders[:width]

    def first(self, orders: Iterable[int]) -> int | None:
        """Which of these groups has the earliest arrival that waits, or None."""
        waiting = [order for order in orders if order in self._waiting]
        return min(waiting, key=lambda order: self._waiting[order][0][0], default=None)

    def waiting(self) -> Iterable[int]:
        """Groups of which a request waits."""
        return self._waiting


@dataclasses.dataclass(frozen=True)
class Fifo:
    """Requests enter as they arrived."""

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        return requests.first(requests.waiting())


@dataclasses.dataclass(frozen=True)
class FrontierStrict:
    """A request enters if, and only if, its group is in the frontier.

    width: F.
    """

    width: int

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        return requests.first(requests.frontier(self.width))


@dataclasses.dataclass(frozen=True)
class FrontierPriority:
    """The frontier's requests enter first; others fill slots that are left.

    width: F.
    """

    width: int

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        order = requests.first(requests.frontier(self.width))
        return requests.first(requests.waiting()) if order is None else order


def admission(settings: Pipeline) -> Fifo | FrontierStrict | FrontierPriority:
    """The rule that `Pipeline.admission` names."""
    if settings.admission == "fifo":
        return Fifo()
    if settings.admission == "frontier_strict":
        return FrontierStrict(settings.frontier_groups)
    return FrontierPriority(settings.frontier_groups)
