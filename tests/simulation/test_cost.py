import itertools

import pytest

from jigsaw_jax.simulation.cost import Decode, Line, Training
from jigsaw_jax.simulation.packing import Packing

MEMORY = Line(fixed_s=1.0, token_s=0.01)
COMPUTE = Line(fixed_s=0.2, sequence_s=0.5)


def stepped(decode, batch, context, steps):
    """The same sum, step by step."""
    total_s = 0.0
    for _ in range(steps):
        total_s += max(line.at(batch, context) for line in decode.lines)
        context += batch
    return total_s


@pytest.mark.parametrize("lines", [(MEMORY,), (COMPUTE,), (MEMORY, COMPUTE)])
@pytest.mark.parametrize(("batch", "context"), [(1, 0), (3, 10), (4, 117), (7, 0)])
@pytest.mark.parametrize("steps", [0, 1, 2, 31, 200])
def test_many_steps_at_once_take_what_they_take_one_by_one(
    lines, batch, context, steps
):
    decode = Decode(lines=lines)
    expected = stepped(decode, batch, context, steps)
    # Sums of at most 200 terms in another order.
    assert decode.steps_s(batch, context, steps) == pytest.approx(expected, rel=1e-12)


def test_the_crossing_of_two_lines_is_between_the_right_steps():
    # Four sequences cost compute 2.2 s; memory 1 + 0.04 i s is dearer from i = 31 on.
    decode = Decode(lines=(COMPUTE, MEMORY))
    assert decode.steps_s(4, 0, 31) == pytest.approx(31 * 2.2)
    assert decode.steps_s(4, 0, 32) == pytest.approx(31 * 2.2 + 2.24)


def test_the_least_work_shares_the_fixed_cost_among_all_slots():
    # Tokens at contexts 5, 6, 7 and 5, 6: 29 held; 5 tokens over 2 slots.
    decode = Decode(lines=(Line(fixed_s=1.0, sequence_s=0.1, token_s=0.01),))
    least = decode.least_s([3, 2], prompt=5, slots=2)
    assert least == pytest.approx(5 / 2 + 0.5 + 0.29)


def packing(*shapes, min_fill=1.0):
    return Packing(shapes=shapes, row_tokens=10, row_trained=11, min_fill=min_fill)


def test_a_hand_off_takes_the_micro_batches_that_its_rows_are_cut_into():
    shapes_s = ((4, 4.5), (2, 2.0), (1, 1.25))
    training = Training(micro_s=shapes_s, packing=packing(4, 2, 1), accumulate_s=0.5)
    # Sequences of 11 tokens have 10 inputs, so a row each.
    assert training.gradient_s([[11]]) == 1.75
    assert training.gradient_s([[11, 11], [11]]) == 3.75
    assert training.gradient_s([[11] * 4, [11, 11]]) == 7.0


def test_no_cut_into_hand_offs_is_below_the_least_training():
    training = Training(
        accumulate_s=0.5,
        group_s=1.0,
        token_s=0.1,
        micro_s=((4, 3.0), (2, 2.0)),
        packing=packing(4, 2, min_fill=0.5),
        step_s=0.25,
    )
    groups = [[3, 9], [7, 7], [10, 1], [2, 2]]
    least = training.least_s(groups, 1)
    for cuts in itertools.product((False, True), repeat=3):
        hands = [[groups[0]]]
        for is_cut, group in zip(cuts, groups[1:], strict=True):
            if is_cut:
                hands.append([])
            hands[-1].append(group)
        assert sum(map(training.gradient_s, hands)) + 0.25 >= least
