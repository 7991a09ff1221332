"""Decode slots of the sampler workers: who runs what, and who has room."""

import dataclasses

from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.ledger import LedgerError


@dataclasses.dataclass(slots=True)
class _Worker:
    """Slots in all, and the attempt that each running sample is at."""

    slots: int
    running: dict[SampleId, int]


class Slots:
    """Where each attempt runs; a slot is never given twice."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._place: dict[SampleId, str] = {}

    def join(self, worker: str, slots: int) -> None:
        """Add a worker all of whose slots are free."""
        if worker in self._workers:
            raise LedgerError(f"worker {worker!r} must be lost before it joins again")
        self._workers[worker] = _Worker(slots, {})

    def lose(self, worker: str) -> list[tuple[SampleId, int]]:
        """Remove a worker; returns the (sample, attempt) pairs that ran on it."""
        lost = self._workers.pop(worker, _Worker(0, {})).running
        for sample in lost:
            del self._place[sample]
        return list(lost.items())

    def roomiest(self) -> str | None:
        """The worker with most free slots, the one that joined first where equal."""
        best, most = None, 0
        for name, worker in self._workers.items():
            free = worker.slots - len(worker.running)
            if free > most:
                best, most = name, free
        return best

    def occupy(self, worker: str, sample: SampleId, attempt: int) -> None:
        """Let the attempt run on a worker that has room."""
        entry = self._workers[worker]
        assert len(entry.running) < entry.slots
        assert sample not in self._place
        entry.running[sample] = attempt
        self._place[sample] = worker

    def release(self, sample: SampleId) -> tuple[str, int] | None:
        """Free the sample's slot; returns (worker, attempt), None if it had none."""
        worker = self._place.pop(sample, None)
        if worker is None:
            return None
        return worker, self._workers[worker].running.pop(sample)

    def running(self) -> tuple[SampleId, ...]:
        """Every sample that has a slot."""
        return tuple(self._place)
