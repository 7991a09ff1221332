"""Decode slots of the sampler workers: who runs what, and who has room."""

import dataclasses
import heapq

from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.ledger import LedgerError

# Whether a worker is late, its free slots as a negative number, and when it joined; the
# least is the next to be given something.
Rank = tuple[bool, int, int]
# Outdated entries that are kept in any case.
SPARE = 64


@dataclasses.dataclass(slots=True)
class _Worker:
    """Slots that are free, and its place in line.

    It is late when it let an attempt fall overdue and has finished none since.
    """

    slots: int
    free: int
    joined: int
    is_late: bool = False

    @property
    def rank(self) -> Rank:
        return self.is_late, -self.free, self.joined


class Slots:
    """Where each attempt runs; a slot is never given twice."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        # The worker and the attempt of each sample that runs.
        self._places: dict[SampleId, tuple[str, int]] = {}
        self._joined = 0
        self._incarnations: dict[str, int] = {}
        # Every rank that a worker had; only its current one counts.
        self._roomy: list[tuple[Rank, str]] = []
        # Workers whose current rank is not in there yet.
        self._changed: set[str] = set()

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
        self._workers[worker] = _Worker(slots, slots, self._joined)
        self._changed.add(worker)

    def lose(self, worker: str) -> list[tuple[SampleId, int]]:
        """Remove a worker; returns the (sample, attempt) pairs that ran on it."""
        if self._workers.pop(worker, None) is None:
            return []
        self._changed.discard(worker)
        places = self._places.items()
        lost = [(s, attempt) for s, (name, attempt) in places if name == worker]
        for sample, _ in lost:
            del self._places[sample]
        return lost

    def roomiest(self) -> str | None:
        """The worker with most free slots, the one that joined first where equal.

        One that is late is the last: what it let fall overdue is to go elsewhere.
        """
        if self._changed:
            self._rank_changed()
        while self._roomy:
            rank, name = self._roomy[0]
            worker = self._workers.get(name)
            if worker is not None and worker.free and rank == worker.rank:
                return name
            heapq.heappop(self._roomy)
        return None

    def occupy(self, worker: str, sample: SampleId, attempt: int) -> None:
        """Let the attempt run on a worker that has room."""
        entry = self._workers[worker]
        assert entry.free > 0
        assert sample not in self._places
        entry.free -= 1
        self._places[sample] = worker, attempt
        if self._roomy and self._roomy[0][1] == worker and entry.free:
            # Usually the one that `roomiest` has just named, so it is outdated by now.
            heapq.heapreplace(self._roomy, (entry.rank, worker))
        else:
            self._changed.add(worker)

    def release(
        self, sample: SampleId, *, is_finished: bool = False, is_overdue: bool = False
    ) -> tuple[str, int] | None:
        """Free the sample's slot, if it has one.

        Args:
          sample: that leaves.
          is_finished: it was sampled to its end.
          is_overdue: its worker was not heard of for too long.

        Returns:
          (worker, attempt); None if it had no slot.
        """
        place = self._places.pop(sample, None)
        if place is not None:
            entry = self._workers[place[0]]
            entry.free += 1
            entry.is_late = is_overdue or (entry.is_late and not is_finished)
            self._changed.add(place[0])
        return place

    def running(self) -> tuple[SampleId, ...]:
        """Every sample that has a slot."""
        return tuple(self._places)

    def _rank_changed(self) -> None:
        """Put workers in line whose rank has changed, once for all of a turn."""
        if len(self._roomy) > 4 * len(self._workers) + SPARE:
            self._roomy.clear()
            self._changed.update(self._workers)
        for name in self._changed:
            entry = self._workers[name]
            if entry.free:
                heapq.heappush(self._roomy, (entry.rank, name))
        self._changed.clear()
