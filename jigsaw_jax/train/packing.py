"""Packs sequences of any length into batches of a few fixed shapes.

Best fit, longest first: each sequence goes to the fullest row that still holds it. A
row has T input tokens and M places for trained ones, so that the head's work is done
where there is a loss only:

    tokens      p p p a a|q b b b|. .     T of them: sequences, then padding
    positions   0 1 2 3 4|0 1 2 3|0 0     restart with each sequence
    segments    1 1 1 1 1|2 2 2 2|0 0     attention stays inside one; 0 is padding
    index       2 3 4 5 6 7 8             M of them: which token predicts the place's
    targets     a a . b b b .             target; mask, logprobs, versions go with it

The last token of a sequence predicts nothing and is left out of the inputs. A sequence
never spans rows, so sequence statistics never cross rows.

With a shared prefix the completions of a group stand behind one copy of their prompt,
which each of them sees beside itself:

    tokens      p p p a a|b b b|. .     one prompt, completions a and b
    positions   0 1 2 3 4|3 4 5|0 0     go on from the prompt's
    segments    1 1 1 2 2|3 3 3|0 0     the prompt is segment 1
    prefixes    1 1 1 1 1|1 1 1|0 0     the segment that a token sees beside its own
    index       2 3 2 5 6               the prompt's last token predicts both a and b
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jigsaw_jax import settings
from jigsaw_jax.settings import sizes
from jigsaw_jax.train.sequences import Trajectory
from jigsaw_jax.types import Bool, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes:
    """The fixed shapes of batches.

    rows: numbers of rows, largest first.
    row_tokens: T.
    row_trained: M.
    min_fill: share of a shape's rows that are in use when it is chosen, save the
        smallest.
    shares_prefix: whether the completions of a group share one copy of the prompt.
    """

    rows: tuple[int, ...]
    row_tokens: int
    row_trained: int
    min_fill: float
    shares_prefix: bool = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Packed rows; the drawing above has the layout.

    tokens_RT: input ids.
    positions_RT: of each input in its sequence.
    segment_ids_RT: 1, 2, ... in each row; 0 is padding.
    prefix_ids_RT: segment of the prompt, or None where no prompt is shared.
    index_RM: the input that predicts the place's target.
    targets_RM: trained tokens.
    mask_RM: which places are in use.
    sequence_ids_RM: 1, 2, ... numbers the sequences of a row, prompts left out: never
        above M, which the sums over sequences rely on.
    places_RM: completion that the place belongs to, as `Trajectory.place`.
    logprobs_RM: of the targets, by the sampler.
    versions_RM: of the weights that drew the targets.
    """

    tokens_RT: Int[Any, "R T"]
    positions_RT: Int[Any, "R T"]
    segment_ids_RT: Int[Any, "R T"]
    prefix_ids_RT: Int[Any, "R T"] | None
    index_RM: Int[Any, "R M"]
    targets_RM: Int[Any, "R M"]
    mask_RM: Bool[Any, "R M"]
    sequence_ids_RM: Int[Any, "R M"]
    places_RM: Int[Any, "R M"]
    logprobs_RM: Float[Any, "R M"]
    versions_RM: Int[Any, "R M"]


def shapes_of(train: settings.Train) -> Shapes:
    """The shapes that the settings ask for.

    Halving stops where rows would no longer divide over the devices. A row's share of
    trained places is that of the longest trajectory.
    """
    return Shapes(
        rows=tuple(rows for rows, _ in sizes.row_shapes(train)),
        row_tokens=train.learner.row_tokens,
        row_trained=sizes.row_trained(train),
        min_fill=train.learner.min_fill,
        shares_prefix=train.learner.shared_prefix,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """What stands together in a row: one sequence, or a prompt and its completions.

    sequences: with the same first `num_prompt` tokens.
    num_prompt: tokens that stand once for all; 0 shares nothing.
    """

    sequences: tuple[Trajectory, ...]
    num_prompt: int

    @property
    def num_inputs(self) -> int:
        """Tokens that the unit takes up in a row."""
        return self.num_prompt + sum(self.num_own(s) for s in self.sequences)

    @property
    def num_trained(self) -> int:
        """Tokens in the loss."""
        return sum(sequence.num_trained for sequence in self.sequences)

    def num_own(self, sequence: Trajectory) -> int:
        """Inputs of a sequence that no other one shares."""
        return sequence.num_inputs - self.num_prompt


def pack(sequences: Sequence[Trajectory], shapes: Shapes) -> list[Batch]:
    """All sequences in as few batches as their shapes allow.

    Args:
      sequences: in any order; those of one `group` begin with the same prompt.
      shapes: of the batches.

    Returns:
      Batches of host arrays.

    Raises:
      ValueError: a sequence does not fit in a row.
    """
    rows = best_fit(units(sequences, shapes), shapes.row_tokens, shapes.row_trained)
    batches, start = [], 0
    for num_rows in cut(len(rows), shapes):
        batches.append(_fill(rows[start : start + num_rows], num_rows, shapes))
        start += num_rows
    return batches


def units(sequences: Sequence[Trajectory], shapes: Shapes) -> list[Unit]:
    """Sequences, or as much of each group as fits in a row behind its prompt."""
    groups: dict[int, list[Trajectory]] = {}
    found = []
    for sequence in sequences:
        if shapes.shares_prefix and sequence.num_prompt:
            groups.setdefault(sequence.group, []).append(sequence)
        else:
            found.append(Unit(sequences=(sequence,), num_prompt=0))
    for group in groups.values():
        num_prompt = group[0].num_prompt
        alone = [Unit(sequences=(one,), num_prompt=num_prompt) for one in group]
        for parts in best_fit(
            alone, shapes.row_tokens, shapes.row_trained, num_shared=num_prompt
        ):
            joined = tuple(part.sequences[0] for part in parts)
            found.append(Unit(sequences=joined, num_prompt=num_prompt))
    return found


def best_fit(
    items: Sequence[Unit], row_tokens: int, row_trained: int, *, num_shared: int = 0
) -> list[list[Unit]]:
    """Units by row, longest first, each into the fullest row that holds it.

    Args:
      items: to be placed.
      row_tokens: inputs that a row holds.
      row_trained: trained tokens that it holds.
      num_shared: inputs of each item that stand only once in a row.

    Returns:
      The items of each row.

    Raises:
      ValueError: an item is larger than a row.
    """
    rows: list[list[Unit]] = []
    room: list[tuple[int, int]] = []
    for item in sorted(items, key=lambda one: -one.num_inputs):
        inputs, trained = item.num_inputs, item.num_trained
        if inputs > row_tokens or trained > row_trained:
            raise ValueError(
                f"Learner.row_tokens must hold the longest trajectory ({inputs} inputs "
                f"of which {trained} train), got rows of {row_tokens} tokens "
                f"with {row_trained} trained"
            )
        own = inputs - num_shared
        fits = [
            (tokens - own, row)
            for row, (tokens, places) in enumerate(room)
            if own <= tokens and trained <= places
        ]
        if fits:
            _, row = min(fits)
        else:
            row = len(rows)
            rows.append([])
            room.append((row_tokens - num_shared, row_trained))
        rows[row].append(item)
        room[row] = (room[row][0] - own, room[row][1] - trained)
    return rows


def cut(num_rows: int, shapes: Shapes) -> list[int]:
    """Numbers of rows of the batches that hold `num_rows`, each one of the shapes."""
    sizes = []
    while num_rows > 0:
        filled = [n for n in shapes.rows if num_rows >= shapes.min_fill * n]
        size = filled[0] if filled else shapes.rows[-1]
        sizes.append(size)
        num_rows -= size
    return sizes


def _fill(rows: Sequence[Sequence[Unit]], num_rows: int, shapes: Shapes) -> Batch:
    batch = empty_batch(num_rows, shapes)
    for r, row in enumerate(rows):
        views = _views(batch, r)
        start = first = segment = number = 0
        for unit in row:
            prefix, prompt_start = segment + 1, start
            if unit.num_prompt:
                segment += 1
                tokens = unit.sequences[0].tokens_T[: unit.num_prompt]
                start = _put_inputs(views, start, tokens, ids=(segment, prefix))
            for sequence in unit.sequences:
                segment, number = segment + 1, number + 1
                starts = (prompt_start, start)
                first = _put_trained(
                    views, first, sequence, unit=unit, starts=starts, number=number
                )
                own = sequence.tokens_T[unit.num_prompt : -1]
                start = _put_inputs(
                    views, start, own, ids=(segment, prefix), position=unit.num_prompt
                )
    return batch


def _views(batch: Batch, r: int) -> dict[str, np.ndarray]:
    """What writes through to one row, by the arrays' names without their dims."""
    arrays = {
        field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)
    }
    return {
        name.rpartition("_")[0]: array[r]
        for name, array in arrays.items()
        if array is not None
    }


def _put_inputs(
    row: dict[str, np.ndarray],
    start: int,
    tokens_T: Int[np.ndarray, " T"],
    *,
    ids: tuple[int, int],
    position: int = 0,
) -> int:
    """Write the inputs of one segment with its (segment, prefix) ids; their end."""
    inputs = slice(start, start + len(tokens_T))
    row["tokens"][inputs] = tokens_T
    row["positions"][inputs] = position + np.arange(len(tokens_T))
    row["segment_ids"][inputs], prefix = ids
    if "prefix_ids" in row:
        row["prefix_ids"][inputs] = prefix
    return inputs.stop


def _put_trained(
    row: dict[str, np.ndarray],
    first: int,
    sequence: Trajectory,
    *,
    unit: Unit,
    starts: tuple[int, int],
    number: int,
) -> int:
    """Write the places of the row's `number`-th sequence; the first place behind them.

    Its prompt and its own inputs begin at `starts`.
    """
    trained = np.flatnonzero(sequence.is_trained_T)
    places = slice(first, first + len(trained))
    predictors = trained - 1
    of_prompt, of_own = starts[0], starts[1] - unit.num_prompt
    row["index"][places] = predictors + np.where(
        predictors < unit.num_prompt, of_prompt, of_own
    )
    row["targets"][places] = sequence.tokens_T[trained]
    row["mask"][places] = True
    row["sequence_ids"][places] = number
    row["places"][places] = sequence.place
    row["logprobs"][places] = sequence.logprobs_T[trained]
    row["versions"][places] = sequence.versions_T[trained]
    return places.stop


def empty_batch(num_rows: int, shapes: Shapes) -> Batch:
    """A batch of padding alone."""

    def zeros(width: int, dtype: type = np.int32) -> np.ndarray:
        return np.zeros((num_rows, width), dtype)

    tokens, trained = shapes.row_tokens, shapes.row_trained
    return Batch(
        tokens_RT=zeros(tokens),
        positions_RT=zeros(tokens),
        segment_ids_RT=zeros(tokens),
        prefix_ids_RT=zeros(tokens) if shapes.shares_prefix else None,
        index_RM=zeros(trained),
        targets_RM=zeros(trained),
        mask_RM=zeros(trained, bool),
        sequence_ids_RM=zeros(trained),
        places_RM=zeros(trained),
        logprobs_RM=zeros(trained, np.float32),
        versions_RM=zeros(trained) - 1,
    )
