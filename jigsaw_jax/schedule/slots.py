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
    """Slots in all, the attempt of each running sample, and its place in line.

    It is late when it let an attempt fall overdue and has finished none since.
    """

    slots: int
    running: dict[SampleId, int]
    joined: int
    is_late: bool = False
    rank: Rank = (False, 0, 0)

    @property
    def free(self) -> int:
        return self.slots - len(self.running)



class Slots:
    """Where each attempt runs; a slot is never given twice."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._place: dict[SampleId, str] = {}
        self._joined = 0
        self._incarnations: dict[str, int] = {}
        # Every rank that a worker had; only its current one counts.
        self._roomy: list[tuple[Rank, str]] = []

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
        entry = self._workers[worker] = _Worker(slots, {}, self._joined)
        self._note(worker, entry)

    def lose(self, worker: str) -> list[tuple[SampleId, int]]:
        """Remove a worker; returns the (sample, attempt) pairs that ran on it."""
        lost = self._workers.pop(worker, _Worker(0, {}, 0)).running
        for sample in lost:
            del self._place[sample]
        return list(lost.items())

    def roomiest(self) -> str | None:
        """The worker with most free slots, the one that joined first where equal.

        One that is late is the last: what it let fall overdue is to go elsewhere.
        """
        while self._roomy:
            rank, name = self._roomy[0]
            worker = self._workers.get(name)
            if worker is not None and rank == worker.rank:
                return name
            heapq.heappop(self._roomy)
        return None

    def occupy(self, worker: str, sample: SampleId, attempt: int) -> None:
        """Let the attempt run on a worker that has room."""
        entry = self._workers[worker]
        assert entry.free > 0
        assert sample not in self._place
        entry.running[sample] = attempt
        self._place[sample] = worker
        if self._roomy and self._roomy[0][1] == worker:
            # Usually the one that `roomiest` has just named: outdated as it is by now,
            # its place at the top saves looking for another's.
            heapq.heappop(self._roomy)
        self._note(worker, entry)

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
        worker = self._place.pop(sample, None)
        if worker is None:
            return None
        entry = self._workers[worker]
        attempt = entry.running.pop(sample)
        entry.is_late = is_overdue or (entry.is_late and not is_finished)
        self._note(worker, entry)
        return worker, attempt

    def running(self) -> tuple[SampleId, ...]:
        """Every sample that has a slot."""
        return tuple(self._place)

    def _note(self, worker: str, entry: _Worker) -> None:
        """Its rank has changed."""
        free = entry.slots - len(entry.running)
        entry.rank = entry.is_late, -free, entry.joined
        if free <= 0:
            return
        heapq.heappush(self._roomy, (entry.rank, worker))
        if len(self._roomy) > 4 * len(self._workers) + SPARE:
            workers = self._workers.items()
            self._roomy = [(w.rank, name) for name, w in workers if w.free > 0]
            heapq.heapify(self._roomy)
