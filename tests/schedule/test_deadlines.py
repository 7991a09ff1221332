from jigsaw_jax.records import GroupId
from jigsaw_jax.schedule.deadlines import Deadlines
from jigsaw_jax.schedule.groups import OpenGroup


def opened():
    """Two groups, and the four samples of both."""
    groups = [OpenGroup(GroupId(uid, 0), order, 2) for order, uid in enumerate("pq")]
    return groups, [member for group in groups for member in group.members]


def send(deadlines, now_s, *members):
    for number, member in enumerate(members):
        member.since_s, member.number = now_s, number
    deadlines.sent(now_s)


def due(deadlines, groups, now_s):
    return [member for _, member in deadlines.due(groups, now_s)]


def test_a_sample_is_due_at_its_time_and_not_before():
    deadlines = Deadlines(10.0)
    groups, (first, second, *_) = opened()
    send(deadlines, 1.0, first)
    send(deadlines, 5.0, second)
    assert due(deadlines, groups, 10.9) == []
    assert deadlines.due(groups, 11.0) == [(groups[0], first)]
    first.since_s = None
    assert due(deadlines, groups, 14.9) == []
    assert due(deadlines, groups, 99.0) == [second]
    second.since_s = None
    assert due(deadlines, groups, 99.0) == []


def test_only_the_newest_deadline_counts_and_none_of_what_is_back():
    deadlines = Deadlines(10.0)
    groups, (first, second, *_) = opened()
    send(deadlines, 0.0, first, second)
    send(deadlines, 5.0, first)
    second.since_s = None
    assert due(deadlines, groups, 10.0) == []
    assert due(deadlines, groups, 15.0) == [first]


def test_what_is_overdue_comes_as_it_was_sent_out():
    deadlines = Deadlines(10.0)
    groups, (a, b, c, d) = opened()
    send(deadlines, 1.0, d, b)
    send(deadlines, 2.0, c, a)
    assert due(deadlines, groups, 12.0) == [d, b, c, a]


def test_zero_waits_for_ever():
    deadlines = Deadlines(0.0)
    groups, (first, *_) = opened()
    send(deadlines, 0.0, first)
    assert due(deadlines, groups, 1e9) == []


def test_nothing_is_looked_at_before_the_first_may_be_due():
    deadlines = Deadlines(10.0)
    groups, (first, second, *_) = opened()
    send(deadlines, 0.0, first)
    send(deadlines, 9.0, second)
    assert deadlines.due(iter([]), 9.9) == []
    first.since_s = None
    # All are looked at, and none is due before the second.
    assert due(deadlines, groups, 10.0) == []

    unseen = iter(groups)
    assert deadlines.due(unseen, 18.9) == []
    assert list(unseen) == groups
    assert due(deadlines, groups, 19.0) == [second]
