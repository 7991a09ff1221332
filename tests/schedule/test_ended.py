import random
import tracemalloc

from jigsaw_jax.records import GroupId
from jigsaw_jax.schedule import ended
from jigsaw_jax.schedule.ended import Ended


def test_what_has_ended_is_known_with_how_and_in_order():
    groups = [GroupId(f"a/{i}/0", i % 3) for i in range(3 * ended.BLOCK + 7)]
    random.Random(0).shuffle(groups)
    found = Ended()
    for index, group in enumerate(groups):
        assert group not in found
        found.add(group, "committed" if index % 5 else "attempts")
    assert len(found) == len(groups)
    assert all(found.has_mark(group) for group in groups)
    assert dict(found.items()) == {
        group: "committed" if index % 5 else "attempts"
        for index, group in enumerate(groups)
    }
    committed = [group for group, how in found.items() if how == "committed"]
    assert committed == [group for i, group in enumerate(groups) if i % 5]
    assert found.how(groups[0]) == "attempts"
    assert found.how(GroupId("a/0/0", 7)) is None


def test_a_mark_that_two_groups_share_does_not_take_one_for_the_other(monkeypatch):
    monkeypatch.setattr(ended, "_mark", lambda _: (3, b"12345678"))
    found = Ended()
    found.add(GroupId("a", 0), "committed")
    assert found.has_mark(GroupId("b", 0))
    assert GroupId("b", 0) not in found
    assert GroupId("a", 0) in found


def test_a_mark_counts_only_where_one_begins(monkeypatch):
    marks = {"a": b"12345678", "b": b"xxx12345", "c": b"678yyyyy", "d": b"45678yyy"}
    monkeypatch.setattr(ended, "_mark", lambda group: (3, marks[group.uid]))
    found = Ended()
    found.add(GroupId("b", 0), "committed")
    found.add(GroupId("c", 0), "committed")
    assert not found.has_mark(GroupId("a", 0))
    assert not found.has_mark(GroupId("d", 0))
    found.add(GroupId("a", 0), "committed")
    assert found.has_mark(GroupId("a", 0))


def test_a_group_takes_a_few_bytes():
    found = Ended()
    num = 20 * ended.BLOCK
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for index in range(num):
        found.add(GroupId(f"run/problem-{index * 7919 % num}/0", 0), "committed")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Half of them are marks on shelves that are still nearly empty.
    assert (after - before) / num < 64
