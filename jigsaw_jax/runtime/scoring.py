"""Completions to who scores them, scores back to the control loop."""

import dataclasses
import random
import threading
from collections.abc import Callable
from typing import Any

from jigsaw_jax.records import GroupId, Prompt, SampleId, Score
from jigsaw_jax.runtime.payloads import group_of

Deliver = Callable[[SampleId, int, Score], None]
Submit = Callable[[Prompt, Any, Callable[[Score], None]], None]


class ScoringDesk:
    """Hands completions over and each score to `deliver`, from the pool's threads.

    With `shuffled` the G scores of a group are dealt anew among its members: the
    same rewards with no relation to what was written, so training must not help.
    The deal depends on the group's identity alone.
    """

    def __init__(
        self,
        submit: Submit,
        deliver: Deliver,
        *,
        samples_per_group: int,
        shuffled: bool = False,
    ) -> None:
        self._submit = submit
        self._deliver = deliver
        self._samples_per_group = samples_per_group
        self._shuffled = shuffled
        self._lock = threading.Lock()
        self._held: dict[GroupId, dict[int, tuple[int, Score]]] = {}

    def score(self, prompt: Prompt, sample: Any) -> None:
        """Score one completion, by its id and attempt; the answer goes to `deliver`."""

        def receive(score: Score) -> None:
            if self._shuffled:
                self._hold(sample.id, sample.attempt, score)
            else:
                self._deliver(sample.id, sample.attempt, score)

        self._submit(prompt, sample, receive)

    def _hold(self, sample_id: SampleId, attempt: int, score: Score) -> None:
        group_id = group_of(sample_id)
        with self._lock:
            held = self._held.setdefault(group_id, {})
            held[sample_id.sample] = (attempt, score)
            if len(held) < self._samples_per_group:
                return
            del self._held[group_id]
        indices = sorted(held)
        dealt = indices.copy()
        random.Random(f"{group_id.uid}/{group_id.draw}").shuffle(dealt)
        for index, source in zip(indices, dealt, strict=True):
            attempt, score = held[index][0], held[source][1]
            self._deliver(SampleId(*group_id, index), attempt, _copy(score))


def _copy(score: Score) -> Score:
    return dataclasses.replace(score, parts=dict(score.parts))
