"""What work costs: decode steps in closed form, and the learner's hand-offs.

A decode step over b sequences that hold C tokens takes the largest of a few lines

    fixed_s + sequence_s b + token_s C

(one for memory, one for compute, say). While the batch stays the same, C grows by b a
step, so the time of many steps is a sum of arithmetic series and nothing is stepped.
"""

import dataclasses
import math
from collections.abc import Sequence

from jigsaw_jax.settings import Train, sizes
from jigsaw_jax.simulation.packing import Packing, packing_of
from jigsaw_jax.simulation.writing import Writing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Seconds of a decode step as far as one resource bounds it.

    Attributes:
      fixed_s: whatever runs.
      sequence_s: for each running sequence.
      token_s: for each token that they hold.
    """

    fixed_s: float
    sequence_s: float = 0.0
    token_s: float = 0.0

    def at(self, batch: int, context: int) -> float:
        """Seconds of one step."""
        return self.fixed_s + self.sequence_s * batch + self.token_s * context


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """A worker's decode steps and prefills.

    Attributes:
      lines: at least one.
      prefill_token_s: of a prompt's token.
      calls: decode steps in one device call; what comes or ends waits for its end.
      report_s: from an end until the pipeline knows of it; see `Costs`.
      insert_s: of entering slots, for each prompt that does in a device call.
      finish_s: by which a completion's end holds the next device call up.
      beside: share by which all of that takes longer while the learner computes.
    """

    lines: tuple[Line, ...]
    prefill_token_s: float = 0.0
    calls: int = 1
    report_s: float = 0.0
    insert_s: float = 0.0
    finish_s: float = 0.0
    beside: float = 0.0

    def steps_s(self, batch: int, context: int, steps: int) -> float:
        """Seconds of the next `steps` decode steps of an unchanged batch.

        Args:
          batch: sequences that run.
          context: tokens that they hold before the first of these steps.
          steps: how many.

        Returns:
          The sum over the steps of the largest line.
        """
        if len(self.lines) == 1:
            line = self.lines[0]
            growth_s = line.token_s * batch * (steps * (steps - 1) // 2)
            return steps * line.at(batch, context) + growth_s
        total_s, done = 0.0, 0
        while done < steps:
            held = context + batch * done
            top = max(self.lines, key=lambda line: (line.at(batch, held), line.token_s))
            until = min(
                (self._crossing(top, other, batch, context) for other in self.lines),
                default=steps,
            )
            num = min(max(until - done, 1), steps - done)
            total_s += num * top.at(batch, held)
            total_s += top.token_s * batch * (num * (num - 1) // 2)
            done += num
        return total_s

    def _crossing(self, top: Line, other: Line, batch: int, context: int) -> int:
        """The first step at which `other` costs more than `top` does now."""
        slope = (other.token_s - top.token_s) * batch
        if slope <= 0:
            return 2**62
        gap = top.at(batch, context) - other.at(batch, context)
        return max(math.floor(gap / slope) + 1, 0)

    def least_s(self, lengths: Sequence[int], *, prompt: int, slots: int) -> float:
        """Seconds of one worker's time that these completions need at least.

        Whatever runs together, a step's fixed cost is shared by `slots` sequences at
        most, and every sequence has its own cost and that of the tokens it holds.

        Args:
          lengths: of the completions.
          prompt: tokens of each prompt.
          slots: of the worker.

        Returns:
          The largest that any line asks for; prefills are left out.
        """
        tokens = sum(lengths)
        held = sum(n * prompt + n * (n - 1) // 2 for n in lengths)
        return max(
            line.fixed_s * tokens / slots
            + line.sequence_s * tokens
            + line.token_s * held
            for line in self.lines
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The learner's work.

    Attributes:
      accumulate_s: of a hand-off.
      group_s: of a group.
      token_s: of a token, prompts included.
      micro_s: (rows, seconds) of each micro-batch shape, largest first; may be none.
      packing: into their rows; not asked for without shapes.
      step_s: of the optimizer.
      publish_s: of a publish.
      checkpoint_s: of a checkpoint, as far as it holds the learner up.
      writing: of it behind that, in the background.
      dispatch_s: for which a call to train waits before it computes.
      trains: what one call trains on: "group" (a hand-off), "update" or "round".
      beside: share by which a hand-off takes longer while samplers decode.
    """

    accumulate_s: float = 0.0
    group_s: float = 0.0
    token_s: float = 0.0
    micro_s: tuple[tuple[int, float], ...] = ()
    packing: Packing | None = None
    step_s: float = 0.0
    publish_s: float = 0.0
    checkpoint_s: float = 0.0
    writing: Writing = dataclasses.field(default_factory=Writing)
    dispatch_s: float = 0.0
    trains: str = "group"
    beside: float = 0.0

    def gradient_s(self, groups: Sequence[Sequence[int]]) -> float:
        """Seconds of one hand-off.

        Args:
          groups: tokens of each sequence of each group, its prompt included.

        Returns:
          Seconds.
        """
        lengths = [length for group in groups for length in group]
        total_s = self.accumulate_s + self.group_s * len(groups)
        total_s += self.token_s * sum(lengths)
        if self.packing is None:
            return total_s
        shapes_s = dict(self.micro_s)
        return total_s + sum(shapes_s[n] for n in self.packing.micro_batches(groups))

    def least_s(self, groups: Sequence[Sequence[int]], updates: int) -> float:
        """Seconds that training on groups needs at least, whatever comes together."""
        lengths = [length for group in groups for length in group]
        total_s = self.accumulate_s * updates + self.group_s * len(groups)
        total_s += self.token_s * sum(lengths) + self.step_s * updates
        calls = min(updates, 1) if self.trains == "round" else updates
        total_s += self.dispatch_s * calls
        if self.packing is not None:
            row_s = min(seconds / rows for rows, seconds in self.micro_s)
            total_s += row_s * self.packing.least_rows(groups)
        return total_s

    def scaled(self, factor: float) -> "Training":
        """Gradients and steps that take `factor` times as long."""
        return dataclasses.replace(
            self,
            accumulate_s=factor * self.accumulate_s,
            group_s=factor * self.group_s,
            token_s=factor * self.token_s,
            micro_s=tuple((rows, factor * seconds) for rows, seconds in self.micro_s),
            step_s=factor * self.step_s,
            dispatch_s=factor * self.dispatch_s,
        )


def constant_decode(train: Train) -> Decode:
    """Decode steps as `Costs` has them."""
    costs = train.simulation.costs
    line = Line(
        fixed_s=costs.decode_s,
        sequence_s=costs.decode_sequence_s,
        token_s=costs.decode_token_s,
    )
    return Decode(
        lines=(line,),
        prefill_token_s=costs.prefill_token_s,
        calls=train.sampler.steps_per_call,
        report_s=costs.report_s,
        insert_s=costs.insert_s,
        finish_s=costs.finish_s,
        beside=costs.beside,
    )


def constant_training(train: Train) -> Training:
    """The learner's work as `Costs` has it."""
    costs = train.simulation.costs
    return Training(
        accumulate_s=costs.accumulate_s,
        group_s=costs.group_s,
        token_s=costs.train_token_s,
        micro_s=micro_shapes(train, costs.gradient_s),
        packing=packing_of(train) if costs.gradient_s else None,
        step_s=costs.step_s,
        publish_s=costs.publish_s,
        checkpoint_s=costs.checkpoint_s,
        writing=Writing(
            alone_s=costs.write_s, held=costs.write_held, lost=costs.write_lost
        ),
        dispatch_s=costs.dispatch_s,
        trains=costs.trains,
        beside=costs.train_beside,
    )


def micro_shapes(train: Train, gradient_s: float) -> tuple[tuple[int, float], ...]:
    """(rows, seconds) of each shape of a run whose full one takes `gradient_s`."""
    if not gradient_s:
        return ()
    return tuple(
        (rows, gradient_s * rows / train.learner.rows)
        for rows, _ in sizes.row_shapes(train)
    )
