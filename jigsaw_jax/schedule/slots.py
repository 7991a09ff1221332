"""Decode slots of the sampler workers: how many each has free, and who has most."""

import dataclasses
import heapq
from collections.abc import Sequence

from jigsaw_jax.schedule.states import LedgerError

# A rank is one number, of which the least is the next to be given something: whether
# the worker is late, then its free slots, the more the less, then when it joined.
LATE = 1 << 64
SLOT = 1 << 32
JOINED = SLOT - 1
# Outdated ranks that are kept in any case.
SPARE = 64


@dataclasses.dataclass(slots=True, eq=False)
class Worker:
    """One life of a sampler.

    name: of it.
    slots: in all.
    joined: counts those that have joined.
    free: slots that are.
    is_late: it let an attempt fall overdue and has finished none since.
    rank: its place in line.
    """

    name: str
    slots: int
    joined: int
    free: int = 0
    is_late: bool = False
    rank: int = 0

    def __post_init__(self) -> None:
        """All slots are free."""
        self.free = self.slots
        self.rank = self.joined - self.free * SLOT


class Slots:
    """Who has room; a slot is never given twice.

    Attributes:
      free: slots that are, of all workers.
    """

    def __init__(self) -> None:
        self.free = 0
        self._workers: dict[str, Worker] = {}
        self._by_joined: dict[int, Worker] = {}
        self._joined = 0
        self._incarnations: dict[str, int] = {}
        # Every rank that a worker had; only its current one counts.
        self._roomy: list[int] = []
        # Workers whose current rank is not in there yet.
        self._changed: set[Worker] = set()

    @property
    def total(self) -> int:
        """Slots of all workers."""
        return sum(worker.slots for worker in self._workers.values())

    @property
    def num_workers(self) -> int:
        """Workers that are there."""
        return len(self._workers)

    def is_news(self, worker: str, incarnation: int, *, of_start: bool) -> bool:
        """Whether word of a worker's start or loss is of its latest life.

        Args:
          worker: its name.
          incarnation: its life, from 1; 0 is always news.
          of_start: whether it has started, which is news once, or is gone.

        Returns:
          False where it came late or, of a start, twice.
        """
        known = self._incarnations.get(worker, 0)
        self._incarnations[worker] = max(known, incarnation)
        if of_start:
            return not incarnation or incarnation > known
        return not incarnation or incarnation >= known

    def join(self, worker: str, slots: int) -> None:
        """Add a worker all of whose slots are free."""
        if worker in self._workers:
            raise LedgerError(f"worker {worker!r} must be lost before it joins again")
        self._joined += 1
        joined = Worker(worker, slots, self._joined)
        self._workers[worker] = self._by_joined[self._joined] = joined
        self._changed.add(joined)
        self.free += slots

    def lose(self, worker: str) -> Worker | None:
        """Remove a worker; returns it, whose slots nobody may release any more."""
        lost = self._workers.pop(worker, None)
        if lost is not None:
            del self._by_joined[lost.joined]
            self._changed.discard(lost)
            self.free -= lost.free
        return lost

    def occupy(self, num: int) -> list[Worker]:
        """Take as many slots, which are free, one after the other.

        Each is one of the worker with most free slots, the one that joined first where
        equal. One that is late is the last: what it let fall overdue is to go
        elsewhere.

        Args:
          num: how many.

        Returns:
          Whose each of them is.
        """
        assert num <= self.free
        self.free -= num
        if self._changed:
            self._rank_changed()
        roomy = self._roomy
        occupied: list[Worker] = []
        while len(occupied) < num:
            rank = roomy[0]
            worker = self._by_joined.get(rank & JOINED)
            if worker is None or worker.rank != rank or not worker.free:
                heapq.heappop(roomy)
                continue
            worker.free -= 1
            worker.rank += SLOT
            # It stays in line, if only to be passed over where it is full now.
            heapq.heapreplace(roomy, worker.rank)
            occupied.append(worker)
        return occupied

    def finished(self, workers: Sequence[Worker]) -> None:
        """Samples have ended, each on one of these, which is there."""
        for worker in workers:
            worker.free += 1
            worker.rank -= SLOT
            if worker.is_late:
                worker.is_late = False
                worker.rank -= LATE
        self._changed.update(workers)
        self.free += len(workers)

    def release(self, worker: Worker, *, is_overdue: bool = False) -> None:
        """A sample that has not ended leaves.

        Args:
          worker: it ran on, which is there.
          is_overdue: it was not heard of for too long.
        """
        self.free += 1
        worker.free += 1
        worker.rank -= SLOT
        if is_overdue and not worker.is_late:
            worker.is_late = True
            worker.rank += LATE
        self._changed.add(worker)

    def _rank_changed(self) -> None:
        """Put workers in line whose rank has changed, once for all of a turn."""
        if len(self._roomy) > 4 * len(self._workers) + SPARE:
            self._roomy.clear()
            self._changed.update(self._workers.values())
        for worker in self._changed:
            if worker.free:
                heapq.heappush(self._roomy, worker.rank)
        self._changed.clear()
