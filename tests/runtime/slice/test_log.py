"""The log of a slice: order, gaps, repeats, and hosts that part."""

import random

import pytest

from jigsaw_jax.runtime.slice import log
from jigsaw_jax.runtime.slice.log import DivergedError, Reader, Trace


def test_entries_come_out_in_their_order_however_they_came_and_each_once():
    for seed in range(20):
        numbers = [*range(1, 30), *range(1, 30, 3)]
        random.Random(seed).shuffle(numbers)
        reader, due = Reader(), []
        for number in numbers:
            due += reader.take(number, f"entry {number}")
        assert due == [f"entry {number}" for number in range(1, 30)]


def test_behind_a_gap_everything_waits():
    reader = Reader()
    assert reader.take(1, "a") == ["a"]
    assert reader.take(3, "c") == []
    assert reader.take(4, "d") == []
    # One that was there is let go, and fills no gap.
    assert reader.take(1, "a") == []
    assert reader.take(2, "b") == ["b", "c", "d"]


def test_a_gap_that_nothing_fills_is_an_error(monkeypatch):
    monkeypatch.setattr(log, "AHEAD_MAX", 3)
    reader = Reader()
    for number in (2, 3, 4):
        assert reader.take(number, number) == []
    with pytest.raises(DivergedError, match="entry 1 of the log must come"):
        reader.take(5, 5)


def test_hosts_that_did_the_same_have_the_same_trace():
    first, second = Trace(), Trace()
    for data in (b"step", b"tokens 1 2 3", b""):
        first.add(data)
        second.add(data)
        second.check(first.value, "step")


@pytest.mark.parametrize(
    "other",
    [
        [b"step", b"2"],
        [b"2", b"step", b"1"],
        [b"step1"],
        [b"step", b"1", b""],
        [b"ste", b"p1"],
    ],
)
def test_another_result_order_or_cut_is_another_trace(other):
    first, second = Trace(), Trace()
    for data in (b"step", b"1"):
        first.add(data)
    for data in other:
        second.add(data)
    with pytest.raises(DivergedError, match=f"{first.value:08x}"):
        second.check(first.value, "swap")
