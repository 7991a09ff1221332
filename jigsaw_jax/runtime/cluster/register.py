"""Who has which attempt, as far as the controller knows."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jigsaw_jax.records import GroupId, SampleId, Score


@dataclasses.dataclass(slots=True)
class Known:
    """What the controller knows of one sample under way.

    id: its identity.
    attempt: the latest.
    number: by which its worker speaks of it.
    worker: the life of a worker that has it.
    is_finished: whether its completion is here.
    is_paused: whether it waits where it was stopped.
    score: what came before it was asked for.
    receive: takes the score that was asked for.
    """

    id: SampleId
    attempt: int
    worker: str
    number: int
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
        # By uid and draw, which a part of a sample's identity equals, and by index.
        self._groups: dict[tuple[str, int], list[Known | None]] = {}
        # In the order of admission.
        self._numbers: dict[int, Known] = {}
        self._number = 0
        self.num_ignored = 0

    def admit(self, sample: SampleId, attempt: int, worker: str) -> int:
        """The worker has it from now on; returns the number that it is to say."""
        key, index = sample[:2], sample[2]
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = []
        while len(group) <= index:
            group.append(None)
        self._forget(group[index])
        self._number = number = self._number + 1
        group[index] = self._numbers[number] = Known(sample, attempt, worker, number)
        return number

    def find(self, sample: SampleId, attempt: int) -> Known | None:
        """What is known of this very attempt."""
        group = self._groups.get(sample[:2], ())
        known = group[sample.sample] if sample.sample < len(group) else None
        return known if known is not None and known.attempt == attempt else None

    def from_worker(self, number: int, worker: str) -> Known | None:
        """The attempt of a number, where this worker has it; None is counted."""
        known = self._numbers.get(number)
        if known is None or known.worker != worker:
            self.ignore()
            return None
        return known

    def ignore(self) -> None:
        """Count a message that changes nothing."""
        self.num_ignored += 1

    def drop(self, sample: SampleId) -> None:
        """It has no attempt any more."""
        group = self._groups.get(sample[:2], [])
        if sample.sample < len(group):
            self._forget(group[sample.sample])
            group[sample.sample] = None

    def end(self, group: GroupId) -> None:
        """None of the group's samples has."""
        for known in self._groups.pop(group, ()):
            self._forget(known)

    def _forget(self, known: Known | None) -> None:
        if known is not None:
            del self._numbers[known.number]

    def lost_with(self, worker: str) -> Sequence[tuple[SampleId, int]]:
        """Attempts whose slot is free and that can't go on without this worker.

        Those that ran have a slot, which the pipeline knows of; these are paused, or
        finished and not scored.
        """
        return [
            (known.id, known.attempt)
            for known in self._numbers.values()
            if known.worker == worker
            and (known.is_paused or (known.is_finished and known.score is None))
        ]
