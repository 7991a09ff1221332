"""The learner's thread: gradients, steps, publishes and checkpoints, in order."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jigsaw_jax.records import (
    Group,
    GroupId,
    GroupsAccumulated,
    StepUpdate,
    UpdateStepped,
)
from jigsaw_jax.runtime.allocator import give_back_freed
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.intervals import Intervals
from jigsaw_jax.runtime.threads import CommandThread, Turns
from jigsaw_jax.train.learner import Learner

# Freed memory is given back no sooner again: to touch 200 MB anew takes 0.1 s.
GIVE_BACK_S = 10.0


class LearnerWorker:
    """Owns the learner; every method but `__init__` runs on the learner's thread.

    Args:
      learner: weights, optimizer and gradient sums.
      turns: on a device that the sampler shares.
      journal: the event log.
      clock: of the run.
      post: takes events.
      is_published: whether the samplers have the learner's weights from the start.

    Attributes:
      thread: where it runs.
      busy: (start_s, end_s) of each accumulation and step.
      metrics: of each step not yet taken by the control loop, by update.
      advantages: of each group of such a step, by update; see `Learner`.
      is_published: whether the samplers have, or are being sent, these very weights.
    """

    def __init__(
        self,
        learner: Learner,
        *,
        turns: Turns,
        journal: Intervals,
        clock: Clock,
        post: Callable[[Any], None],
        is_published: bool,
    ) -> None:
        self._learner = learner
        self._turns = turns
        self._journal = journal
        self._clock = clock
        self._post = post
        self.busy: collections.deque[tuple[float, float]] = collections.deque()
        self.metrics: dict[int, dict[str, float]] = {}
        self.advantages: dict[int, dict[GroupId, list[float]]] = {}
        self.is_published = is_published
        self._given_back_s = -GIVE_BACK_S
        self.thread = CommandThread("learner", post)

    def accumulate(self, groups: Sequence[Group], update: int) -> None:
        """Add the gradient sums of whole groups and wait for the device.

        Waiting keeps the hand-off honest: while it lasts further groups gather, and
        the next hand-off takes them together in fuller rows.
        """
        with self._turns.turn():
            start_s = self._clock.now_s()
            rows = self._learner.accumulate(groups, update)
            self._learner.block()
            end_s = self._clock.now_s()
        sizes = {"rows": rows, **_sizes(groups)}
        self._log("accumulate", start_s, end_s, update=update, **sizes)
        self._post(
            GroupsAccumulated(
                now_s=end_s,
                groups=tuple(group.id for group in groups),
                update=update,
            )
        )

    def step(self, effect: StepUpdate) -> None:
        """Divide once and step the optimizer."""
        with self._turns.turn():
            start_s = self._clock.now_s()
            self.metrics[effect.update] = self._learner.step(effect.update)
            self.advantages[effect.update] = self._learner.take_advantages()
            self.is_published = False
            end_s = self._clock.now_s()
        self._log("step", start_s, end_s, update=effect.update)
        self._post(UpdateStepped(now_s=end_s, update=effect.update))

    def publish(self, version: int, send: Callable[[Any, int], None]) -> None:
        """Hand the current weights to `send(params, version)`."""
        with self._turns.turn():
            params = self._learner.export_params()
            jax.block_until_ready(params)
            self._learner.begin_round(version)
            self.is_published = True
        send(params, version)

    def save(self, save: Callable[[Any, Callable[[], None]], None]) -> None:
        """Hand the learner's state to `save(state, written)` between two steps.

        It calls `written`, from any thread, once the checkpoint is whole on disk.
        """
        start_s = self._clock.now_s()
        if start_s - self._given_back_s >= GIVE_BACK_S:
            # Nothing is being computed now, and what the save before took is free.
            give_back_freed()
            self._given_back_s = start_s

        def written() -> None:
            self._journal.interval("disk", "write", start_s, self._clock.now_s())

        save(self._learner.state(), written)
        self._journal.interval("checkpoint", "save", start_s, self._clock.now_s())

    def _log(self, name: str, start_s: float, end_s: float, **fields: Any) -> None:
        self.busy.append((start_s, end_s))
        self._journal.interval("learner", name, start_s, end_s, **fields)


def _sizes(groups: Sequence[Group]) -> dict[str, int]:
    """What a hand-off's time depends on, for those who fit costs to the log."""
    prompts = [len(group.prompt.tokens) for group in groups]
    sampled = sum(sample.num_sampled for group in groups for sample in group.samples)
    repeated = sum(
        length * len(group.samples)
        for length, group in zip(prompts, groups, strict=True)
    )
    return {
        "groups": len(groups),
        "tokens": sampled + repeated,
        "prompt_tokens": sum(prompts),
    }
