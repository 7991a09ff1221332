import pytest

from jigsaw_jax.records import (
    AccumulateGroups,
    GroupId,
    GroupsAccumulated,
    StepUpdate,
    UpdateStepped,
)
from jigsaw_jax.schedule.assembly import Assembly, fifo_prefix
from jigsaw_jax.schedule.groups import OpenGroup


def group(order, num_tokens=1):
    opened = OpenGroup(GroupId(f"p{order}", 0), order, 1)
    opened.num_tokens = num_tokens
    return opened


@pytest.mark.parametrize(
    ("sizes", "places", "budget", "expected"),
    [
        ([4, 4, 4], 3, 0, 3),
        ([4, 4, 4], 2, 0, 2),
        ([4, 4, 4], 3, 8, 2),
        ([4, 4, 4], 3, 7, 1),
        ([9, 1], 2, 8, 1),
        # Whole groups in order: a small one never overtakes one that does not fit.
        ([4, 9, 1], 3, 8, 1),
        ([], 2, 8, 0),
    ],
)
def test_a_handoff_is_the_longest_prefix_that_fits(sizes, places, budget, expected):
    groups = [group(i, size) for i, size in enumerate(sizes)]
    prefix = fifo_prefix(groups, places=places, token_budget=budget)
    assert prefix == groups[:expected]


def test_an_update_is_accumulated_then_stepped_then_the_next_begins():
    assembly = Assembly()
    assembly.updates_done = 7
    first, second = group(3), group(5)
    assert assembly.hand([first, second]) == AccumulateGroups(
        groups=(first.id, second.id), orders=(3, 5), update=7
    )
    assert assembly.is_busy
    assembly.accumulated(GroupsAccumulated(now_s=0.0, groups=(first.id,), update=7))
    assert assembly.is_busy
    assembly.accumulated(
        GroupsAccumulated(now_s=0.0, groups=(first.id, second.id), update=7)
    )
    assert not assembly.is_busy
    assert assembly.step() == StepUpdate(update=7, groups=(first.id, second.id))
    assert assembly.stepped(UpdateStepped(now_s=0.0, update=6)) == []
    assert assembly.stepped(UpdateStepped(now_s=0.0, update=7)) == [first, second]
    assert assembly.stepped(UpdateStepped(now_s=0.0, update=7)) == []
    assert (assembly.updates_done, assembly.groups) == (8, [])
    with pytest.raises(AssertionError):
        assembly.step()
    with pytest.raises(ValueError, match=r"UpdateStepped\.update must be"):
        assembly.stepped(UpdateStepped(now_s=0.0, update=8))
