"""Completions that lie in Ray's store: what the controller keeps of them, and knows."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import ray

from jigsaw_jax.records import Group, Sample, SampleId, Score
from jigsaw_jax.runtime import wire


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where one completion is; in the place of a `Sample`.

    id: its identity.
    attempt: which delivery.
    num_sampled: its tokens.
    is_truncated: whether a length cap ended it.
    blob: the object that holds it, owned by the controller. So it outlives the process
        that sampled it, though not that process's host.
    offset: its first byte in there.
    size: its bytes.
    """

    id: SampleId
    attempt: int
    num_sampled: int
    is_truncated: bool
    blob: Any
    offset: int
    size: int

    def fetch(self) -> Sample:
        """The completion."""
        blob = memoryview(ray.get(self.blob))
        return wire.read_sample(blob[self.offset : self.offset + self.size])


def fetched(group: Group) -> Group:
    """The group with its completions."""
    samples = tuple(sample.fetch() for sample in group.samples)
    return dataclasses.replace(group, samples=samples)


def message(groups: Iterable[Group]) -> tuple[list[Any], list[Any]]:
    """Groups as a command names them, and the objects that they lie in, each once."""
    blobs: dict[Any, int] = {}
    told = []
    for group in groups:
        places = [
            [blobs.setdefault(s.blob, len(blobs)), s.offset, s.size]
            for s in group.samples
        ]
        told.append(
            [
                wire.plain(group.id),
                group.order,
                wire.plain(group.prompt),
                places,
                wire.plain(group.scores),
            ]
        )
    return told, list(blobs)


@dataclasses.dataclass(slots=True)
class Known:
    """What the controller knows of one sample under way.

    attempt: the latest.
    worker: the life of a worker that has it.
    is_finished: whether its completion is here.
    is_paused: whether it waits where it was stopped.
    score: what came before it was asked for.
    receive: takes the score that was asked for.
    """

    attempt: int
    worker: str
    is_finished: bool = False
    is_paused: bool = False
    score: Score | None = None
    receive: Any = None


class Register:
    """Who has which attempt; word of any other is late, doubled or foreign.

    For one thread at a time.

    Attributes:
      num_ignored: messages that came late, twice, or from who has no such attempt.
    """

    def __init__(self) -> None:
        self._known: dict[SampleId, Known] = {}
        self.num_ignored = 0

    def admit(self, sample: SampleId, attempt: int, worker: str) -> None:
        """The worker has it from now on."""
        self._known[sample] = Known(attempt, worker)

    def find(self, sample: SampleId, attempt: int) -> Known | None:
        """What is known of this very attempt."""
        known = self._known.get(sample)
        return known if known is not None and known.attempt == attempt else None

    def from_worker(self, sample: SampleId, attempt: int, worker: str) -> Known | None:
        """The same, where this worker has it; None is counted."""
        known = self.find(sample, attempt)
        if known is None or known.worker != worker:
            self.ignore()
            return None
        return known

    def ignore(self) -> None:
        """Count a message that changes nothing."""
        self.num_ignored += 1

    def drop(self, sample: SampleId) -> None:
        """It has no attempt any more."""
        self._known.pop(sample, None)

    def lost_with(self, worker: str) -> Sequence[tuple[SampleId, int]]:
        """Attempts whose slot is free and that can't go on without this worker.

        Those that ran have a slot, which the pipeline knows of; these are paused, or
        finished and not scored.
        """
        return [
            (sample, known.attempt)
            for sample, known in self._known.items()
            if known.worker == worker
            and (known.is_paused or (known.is_finished and known.score is None))
        ]
