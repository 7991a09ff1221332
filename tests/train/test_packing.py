"""Packing: the layout of a row by hand, and what must hold for any sequences."""

import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jigsaw_jax.settings import Mesh
from jigsaw_jax.train import packing
from jigsaw_jax.train.sequences import Trajectory, from_pair
from tests.train.make_groups import run

SHAPES = packing.Shapes(rows=(4, 2), row_tokens=8, row_trained=6, min_fill=0.5)


def trajectory(tokens, trained, place=0, **shared):
    num = len(tokens)
    return Trajectory(
        tokens_T=np.array(tokens, np.int32),
        is_trained_T=np.array([i in trained for i in range(num)]),
        logprobs_T=-np.arange(num, dtype=np.float32),
        versions_T=np.full(num, 3, np.int32),
        place=place,
        **shared,
    )


def test_the_layout_of_one_row():
    # The longer sequence comes first; token 12 was observed.
    one = trajectory([10, 11, 12, 13], {1, 3}, place=5)
    two = trajectory([20, 21, 22, 23, 24], {3, 4}, place=6)
    (batch,) = packing.pack([one, two], SHAPES)
    assert batch.tokens_RT[0].tolist() == [20, 21, 22, 23, 10, 11, 12, 0]
    assert batch.positions_RT[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert batch.segment_ids_RT[0].tolist() == [1, 1, 1, 1, 2, 2, 2, 0]
    assert batch.targets_RM[0].tolist() == [23, 24, 11, 13, 0, 0]
    assert batch.index_RM[0].tolist() == [2, 3, 4, 6, 0, 0]
    assert batch.mask_RM[0].tolist() == [True] * 4 + [False] * 2
    assert batch.sequence_ids_RM[0].tolist() == [1, 1, 2, 2, 0, 0]
    assert batch.places_RM[0].tolist() == [6, 6, 5, 5, 0, 0]
    assert batch.logprobs_RM[0].tolist() == [-3, -4, -1, -3, 0, 0]
    assert batch.versions_RM[0].tolist() == [3, 3, 3, 3, -1, -1]
    assert not batch.mask_RM[1:].any()


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=40))
def test_every_trained_token_is_in_one_place_behind_its_own_context(sizes):
    pairs = [
        from_pair((i,) * prompt, tuple(range(100, 100 + solution)))
        for i, (prompt, solution) in enumerate(sizes)
    ]
    batches = packing.pack(pairs, SHAPES)
    assert all(len(b.mask_RM) in SHAPES.rows for b in batches)
    seen = collections.Counter()
    for batch in batches:
        for r, m in np.argwhere(batch.mask_RM):
            index = batch.index_RM[r, m]
            segment = batch.sequence_ids_RM[r, m]
            assert batch.segment_ids_RT[r, index] == segment
            inputs = batch.tokens_RT[r][batch.segment_ids_RT[r] == segment]
            position = batch.positions_RT[r, index]
            context = inputs[: position + 1]
            assert inputs[position] == batch.tokens_RT[r, index]
            seen[(*context.tolist(), int(batch.targets_RM[r, m]))] += 1
    expected = collections.Counter(
        tuple(p.tokens_T[: t + 1].tolist())
        for p in pairs
        for t in np.flatnonzero(p.is_trained_T)
    )
    assert seen == expected


def test_the_layout_of_a_shared_prompt():
    shapes = packing.Shapes(
        rows=(1,), row_tokens=9, row_trained=9, min_fill=0.5, shares_prefix=True
    )
    # Prompt 1 2 3; the second completion has a single token, so no input of its own.
    group = {"group": 4, "num_prompt": 3}
    a = trajectory([1, 2, 3, 10, 11, 12], {3, 4, 5}, place=7, **group)
    b = trajectory([1, 2, 3, 20], {3}, place=8, **group)
    c = trajectory([5, 30, 31], {1, 2}, place=0, group=2, num_prompt=1)
    (batch,) = packing.pack([b, c, a], shapes)
    assert batch.tokens_RT[0].tolist() == [1, 2, 3, 10, 11, 5, 30, 0, 0]
    assert batch.positions_RT[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 0]
    assert batch.segment_ids_RT[0].tolist() == [1, 1, 1, 2, 2, 4, 5, 0, 0]
    assert batch.prefix_ids_RT is not None
    assert batch.prefix_ids_RT[0].tolist() == [1, 1, 1, 1, 1, 4, 4, 0, 0]
    assert batch.targets_RM[0].tolist() == [10, 11, 12, 20, 30, 31, 0, 0, 0]
    assert batch.index_RM[0].tolist() == [2, 3, 4, 2, 5, 6, 0, 0, 0]
    assert batch.sequence_ids_RM[0].tolist() == [1, 1, 1, 2, 3, 3, 0, 0, 0]
    assert batch.places_RM[0].tolist() == [7, 7, 7, 8, 0, 0, 0, 0, 0]


def test_sequences_are_numbered_within_the_places_of_a_row():
    """Prompts have segments too; with one-token completions those outnumber places."""
    shapes = packing.Shapes(
        rows=(1,), row_tokens=6, row_trained=6, min_fill=0.5, shares_prefix=True
    )
    ones = [
        trajectory([p, 9], {1}, place=p, group=p, num_prompt=1) for p in range(1, 7)
    ]
    (batch,) = packing.pack(ones, shapes)
    assert batch.segment_ids_RT.max() == 11
    assert batch.sequence_ids_RM[0].tolist() == [1, 2, 3, 4, 5, 6]


def test_what_shares_no_prompt_stands_alone():
    pairs = [from_pair((i,), (i + 1, i + 2)) for i in range(4)]
    alone, shared = (
        packing.pack(pairs, dataclasses.replace(SHAPES, shares_prefix=shares))
        for shares in (False, True)
    )
    for one, other in zip(alone, shared, strict=True):
        assert one.segment_ids_RT.tolist() == other.segment_ids_RT.tolist()
        assert other.prefix_ids_RT is not None
        assert other.prefix_ids_RT.tolist() == other.segment_ids_RT.tolist()


def test_a_group_larger_than_a_row_repeats_its_prompt():
    shapes = packing.Shapes(
        rows=(4,), row_tokens=6, row_trained=6, min_fill=0.5, shares_prefix=True
    )
    many = [
        trajectory([1, 2, 30, 31, 32], {2, 3, 4}, place=p, group=0, num_prompt=2)
        for p in range(3)
    ]
    (batch,) = packing.pack(many, shapes)
    assert batch.tokens_RT[0].tolist() == [1, 2, 30, 31, 30, 31]
    assert batch.tokens_RT[1].tolist() == [1, 2, 30, 31, 0, 0]
    assert sorted(set(batch.places_RM[batch.mask_RM].tolist())) == [0, 1, 2]


def test_best_fit_takes_the_fullest_row_that_has_room():
    shapes = packing.Shapes(rows=(4,), row_tokens=10, row_trained=10, min_fill=0.5)
    # Inputs 7 and 6 open rows; 3 fills the first although the second has room too.
    pairs = [from_pair((1,) * num, (2,)) for num in (6, 7, 3, 4)]
    rows = packing.best_fit(packing.units(pairs, shapes), 10, 10)
    assert [[unit.num_inputs for unit in row] for row in rows] == [[7, 3], [6, 4]]


def test_places_for_trained_tokens_close_a_row_too():
    pairs = [from_pair((1,), (2,) * 4)] * 2
    rows = packing.best_fit(packing.units(pairs, SHAPES), 8, 6)
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("num_rows", "sizes"),
    [
        (16, [16]),
        (10, [16]),
        (5, [8]),
        (1, [4]),
        (0, []),
        (35, [16, 16, 4]),
        (7, [8]),
        (21, [16, 8]),
    ],
)
def test_batches_take_the_largest_shape_that_is_filled_enough(num_rows, sizes):
    shapes = packing.Shapes(rows=(16, 8, 4), row_tokens=8, row_trained=8, min_fill=0.6)
    assert packing.cut(num_rows, shapes) == sizes


def test_too_long_a_sequence_names_the_setting():
    with pytest.raises(ValueError, match=r"Learner.row_tokens .*9 inputs of which 1"):
        packing.pack([from_pair((1,) * 9, (2,))], SHAPES)
    with pytest.raises(ValueError, match="7 inputs of which 7 train"):
        packing.pack([from_pair((1,), (2,) * 7)], SHAPES)


def test_shapes_halve_while_rows_divide_over_the_devices():
    train = run(rows=8, row_shapes=4, mesh=Mesh(data=2, fsdp=2, shared=True))
    assert packing.shapes_of(train).rows == (8, 4)
    # Rows of 32 tokens, of which 12 in 20 can train: 19.2, rounded up.
    assert packing.shapes_of(train).row_trained == 20
    assert packing.shapes_of(run(rows=8, row_shapes=3)).rows == (8, 4, 2)
