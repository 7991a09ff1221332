"""A simulated learner: one thread that does its commands in order."""

import dataclasses
from collections.abc import Callable

from jigsaw_jax import records
from jigsaw_jax.records import Event, GroupId
from jigsaw_jax.simulation.agenda import Agenda
from jigsaw_jax.simulation.cost import Training
from jigsaw_jax.simulation.writing import Writer


class Learner:
    """Takes commands of the pipeline, one after the other, as a real thread would.

    Args:
      training: costs.
      agenda: virtual time.
      lengths: tokens of a group's sequences, prompts included.
      is_sampling: whether samplers decode now.
      post: takes events.
      log: told of (name, start_s, end_s, update or version, groups).
    """

    def __init__(
        self,
        training: Training,
        *,
        agenda: Agenda,
        lengths: Callable[[GroupId], list[int]],
        is_sampling: Callable[[], bool],
        post: Callable[[Event], None],
        log: Callable[[str, float, float, int, tuple[GroupId, ...]], None],
    ) -> None:
        self._training = training
        self._agenda = agenda
        self._lengths, self._post, self._log = lengths, post, log
        self._is_sampling = is_sampling
        self._free_s = 0.0
        self._writer = Writer(
            training.writing, lambda start_s, end_s: log("write", start_s, end_s, 0, ())
        )
        self._trains_whole = training.trains != "group"
        # Whether the call of this round has been made.
        self._is_called = False

    def accumulate(self, effect: records.AccumulateGroups) -> None:
        """Add gradients of whole groups."""
        event = records.GroupsAccumulated(
            now_s=0.0, groups=effect.groups, update=effect.update
        )
        if self._trains_whole:
            self._do("", 0.0, event, effect.update)
            return
        seconds = self._gradient_s(effect.groups)
        self._call()
        self._do("accumulate", seconds, event, effect.update, effect.groups)

    def step(self, effect: records.StepUpdate) -> None:
        """Step the optimizer; where a whole update trains, its gradients too."""
        event = records.UpdateStepped(now_s=0.0, update=effect.update)
        if self._trains_whole:
            seconds = self._gradient_s(effect.groups)
            self._call()
            self._do("accumulate", seconds, None, effect.update, effect.groups)
        self._do("step", self._training.step_s, event, effect.update, effect.groups)

    def publish(self, effect: records.PublishVersion) -> None:
        """Hand the weights to the samplers."""
        self._is_called = False
        event = records.VersionPublished(now_s=0.0, version=effect.version)
        self._do("publish", self._training.publish_s, event, effect.version)

    def save(self, effect: records.WriteCheckpoint) -> None:
        """Write a checkpoint."""
        event = records.CheckpointDurable(now_s=0.0, updates=effect.updates)
        start_s = max(self._free_s, self._agenda.now_s)
        self._free_s = self._writer.begin(start_s)
        self._do("save", self._training.checkpoint_s, event, effect.updates)

    def _gradient_s(self, groups: tuple[GroupId, ...]) -> float:
        """Of a hand-off, which starts soon: samplers do then what they do now."""
        seconds = self._training.gradient_s([self._lengths(group) for group in groups])
        is_slower = self._training.beside and self._is_sampling()
        return seconds * (1 + self._training.beside) if is_slower else seconds

    def _call(self) -> None:
        """Wait for what a call to train takes before it computes."""
        if self._training.trains != "round" or not self._is_called:
            self._do("", self._training.dispatch_s, None, 0)
        self._is_called = True

    def _do(
        self,
        name: str,
        seconds: float,
        event: Event | None,
        number: int,
        groups: tuple[GroupId, ...] = (),
    ) -> None:
        start_s = max(self._free_s, self._agenda.now_s)
        computes = name in ("accumulate", "step")
        self._free_s = (
            self._writer.compute(start_s, seconds) if computes else start_s + seconds
        )
        if name:
            self._log(name, start_s, self._free_s, number, groups)
        if event is not None:
            event = dataclasses.replace(event, now_s=self._free_s)
            self._agenda.at(self._free_s, self._post, event)
