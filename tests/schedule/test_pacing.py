import collections
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jigsaw_jax.schedule.pacing import capacity, latest_in_time
from jigsaw_jax.settings import Pipeline


def paced(staleness_max, size):
    return Pipeline(
        mode="async",
        staleness_max=staleness_max,
        groups_per_update=size,
        groups_per_round=size,
    )


@pytest.mark.parametrize(
    ("version", "updates_done", "outstanding", "expected"),
    [
        (0, 0, 0, 12),
        (100, 100, 0, 12),
        (100, 100, 5, 7),
        # A publish that is under way counts as not yet made.
        (99, 100, 0, 8),
        (100, 100, 12, 0),
        (97, 100, 1, 0),
    ],
)
def test_capacity_is_the_bound_less_all_that_was_admitted_and_not_dropped(
    version, updates_done, outstanding, expected
):
    found = capacity(
        paced(2, 4),
        version=version,
        updates_done=updates_done,
        outstanding=outstanding,
    )
    assert found == expected
    consumed = updates_done * 4
    assert found == max((2 + version + 1) * 4 - (consumed + outstanding), 0)


def test_an_over_issue_narrows_how_far_sampling_may_run_ahead():
    settings = Pipeline(
        mode="async",
        staleness_max=2,
        groups_per_update=4,
        groups_per_round=4,
        over_issue_groups=3,
    )
    # The four of the update under way and three beyond it.
    found = capacity(settings, version=5, updates_done=5, outstanding=0)
    assert found == 7
    assert capacity(settings, version=5, updates_done=5, outstanding=6) == 1


def can_all_meet(deadlines, *, update, free, size):
    """Whether some assignment of groups to places is in time, by trying all."""
    places = [update] * free
    later = update
    while len(places) < len(deadlines):
        later += 1
        places += [later] * size
    return any(
        all(place <= deadline for place, deadline in zip(order, deadlines, strict=True))
        for order in itertools.permutations(places, len(deadlines))
    )


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    deadlines=st.lists(st.integers(3, 6), min_size=1, max_size=5),
    free=st.integers(1, 3),
    size=st.integers(1, 3),
)
def test_a_group_may_go_first_exactly_when_all_others_can_still_be_in_time(
    deadlines, free, size
):
    free = min(free, size)
    mine, *others = deadlines
    if not can_all_meet(deadlines, update=3, free=free, size=size):
        return
    rest_can = can_all_meet(others, update=3, free=free - 1, size=size)
    counts = collections.Counter(deadlines)
    latest = latest_in_time(counts, update=3, free=free, size=size)
    assert (mine <= latest) == rest_can
