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
    """

    rows: tuple[int, ...]
    row_tokens: int
    row_trained: int
    min_fill: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Packed rows; the drawing above has the layout.

    tokens_RT: input ids.
    positions_RT: of each input in its sequence.
    segment_ids_RT: 1, 2, ... in each row; 0 is padding.
    index_RM: the input that predicts the place's target.
    targets_RM: trained tokens.
    mask_RM: which places are in use.
    sequence_ids_RM: segment of the place.
    places_RM: completion that the place belongs to, as `Trajectory.place`.
    logprobs_RM: of the targets, by the sampler.
    versions_RM: of the weights that drew the targets.
    """

    tokens_RT: Int[Any, "R T"]
    positions_RT: Int[Any, "R T"]
    segment_ids_RT: Int[Any, "R T"]
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
    )


def pack(sequences: Sequence[Trajectory], shapes: Shapes) -> list[Batch]:
    """All sequences in as few batches as their shapes allow.

    Args:
      sequences: in any order.
      shapes: of the batches.

    Returns:
      Batches of host arrays.

    Raises:
      ValueError: a sequence does not fit in a row.
    """
    rows = best_fit(sequences, shapes)
    batches, start = [], 0
    for num_rows in cut(len(rows), shapes):
        batches.append(_fill(rows[start : start + num_rows], num_rows, shapes))
        start += num_rows
    return batches


def best_fit(sequences: Sequence[Trajectory], shapes: Shapes) -> list[list[Trajectory]]:
    """Sequences by row."""
    rows: list[list[Trajectory]] = []
    room: list[tuple[int, int]] = []
    for sequence in sorted(sequences, key=lambda s: -s.num_inputs):
        inputs, trained = sequence.num_inputs, sequence.num_trained
        if inputs > shapes.row_tokens or trained > shapes.row_trained:
            raise ValueError(
                f"Learner.row_tokens must hold the longest trajectory ({inputs} inputs "
                f"of which {trained} train), got rows of {shapes.row_tokens} tokens "
                f"with {shapes.row_trained} trained"
            )
        fits = [
            (tokens - inputs, row)
            for row, (tokens, places) in enumerate(room)
            if inputs <= tokens and trained <= places
        ]
        if fits:
            _, row = min(fits)
        else:
            row = len(rows)
            rows.append([])
            room.append((shapes.row_tokens, shapes.row_trained))
        rows[row].append(sequence)
        room[row] = (room[row][0] - inputs, room[row][1] - trained)
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


def _fill(rows: Sequence[Sequence[Trajectory]], num_rows: int, shapes: Shapes) -> Batch:
    batch = empty_batch(num_rows, shapes)
    for r, row in enumerate(rows):
        start, first = 0, 0
        for segment, sequence in enumerate(row, start=1):
            inputs = slice(start, start + sequence.num_inputs)
            batch.tokens_RT[r, inputs] = sequence.tokens_T[:-1]
            batch.positions_RT[r, inputs] = np.arange(sequence.num_inputs)
            batch.segment_ids_RT[r, inputs] = segment
            trained = np.flatnonzero(sequence.is_trained_T)
            places = slice(first, first + len(trained))
            batch.index_RM[r, places] = start + trained - 1
            batch.targets_RM[r, places] = sequence.tokens_T[trained]
            batch.mask_RM[r, places] = True
            batch.sequence_ids_RM[r, places] = segment
            batch.places_RM[r, places] = sequence.place
            batch.logprobs_RM[r, places] = sequence.logprobs_T[trained]
            batch.versions_RM[r, places] = sequence.versions_T[trained]
            start, first = inputs.stop, places.stop
    return batch


def empty_batch(num_rows: int, shapes: Shapes) -> Batch:
    """A batch of padding alone."""

    def zeros(width: int, dtype: type = np.int32) -> np.ndarray:
        return np.zeros((num_rows, width), dtype)

    tokens, trained = shapes.row_tokens, shapes.row_trained
    return Batch(
        tokens_RT=zeros(tokens),
        positions_RT=zeros(tokens),
        segment_ids_RT=zeros(tokens),
        index_RM=zeros(trained),
        targets_RM=zeros(trained),
        mask_RM=zeros(trained, bool),
        sequence_ids_RM=zeros(trained),
        places_RM=zeros(trained),
        logprobs_RM=zeros(trained, np.float32),
        versions_RM=zeros(trained) - 1,
    )
