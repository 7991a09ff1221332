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
        # By uid, draw and index, which a sample's identity equals.
        self._known: dict[tuple[str, int, int], Known] = {}
        self._numbers: dict[int, Known] = {}
        self._number = 0
        self.num_ignored = 0

    def admit(self, sample: SampleId, attempt: int, worker: str) -> int:
        """The worker has it from now on; returns the number that it is to say."""
        self.drop(sample)
        self._number += 1
        known = Known(sample, attempt, worker, self._number)
        self._known[sample] = self._numbers[known.number] = known
        return known.number

    def find(self, sample: SampleId, attempt: int) -> Known | None:
        """What is known of this very attempt."""
        known = self._known.get(sample)
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
        known = self._known.pop(sample, None)
        if known is not None:
            del self._numbers[known.number]

    def end(self, group: GroupId, size: int) -> None:
        """None of the group's samples has."""
        for index in range(size):
            known = self._known.pop((group.uid, group.draw, index), None)
            if known is not None:
                del self._numbers[known.number]

    def lost_with(self, worker: str) -> Sequence[tuple[SampleId, int]]:
        """Attempts whose slot is free and that can't go on without this worker.

        Those that ran have a slot, which the pipeline knows of; these are paused, or
        finished and not scored.
        """
        return [
            (known.id, known.attempt)
            for known in self._known.values()
            if known.worker == worker
            and (known.is_paused or (known.is_finished and known.score is None))
        ]
