import pytest

from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.ledger import LedgerError
from jigsaw_jax.schedule.slots import Slots

FIRST, SECOND = SampleId("p", 0, 0), SampleId("p", 0, 1)


def test_the_roomiest_worker_is_next_and_a_full_one_never():
    slots = Slots()
    assert slots.roomiest() is None
    slots.join("a", 1)
    slots.join("b", 1)
    assert slots.roomiest() == "a"
    slots.occupy("a", FIRST, 0)
    assert slots.roomiest() == "b"
    slots.occupy("b", SECOND, 3)
    assert slots.roomiest() is None
    with pytest.raises(AssertionError):
        slots.occupy("b", SampleId("p", 0, 2), 0)


def test_a_slot_is_freed_once():
    slots = Slots()
    slots.join("a", 1)
    slots.occupy("a", FIRST, 2)
    assert slots.release(FIRST) == ("a", 2)
    assert slots.release(FIRST) is None
    assert slots.roomiest() == "a"


def test_a_lost_worker_takes_its_slots_and_names_what_ran():
    slots = Slots()
    slots.join("a", 2)
    slots.join("b", 1)
    slots.occupy("a", FIRST, 2)
    slots.occupy("b", SECOND, 0)
    assert slots.lose("a") == [(FIRST, 2)]
    assert slots.lose("a") == []
    assert slots.running() == (SECOND,)
    assert slots.roomiest() is None


def test_a_worker_joins_once():
    slots = Slots()
    slots.join("a", 1)
    with pytest.raises(LedgerError):
        slots.join("a", 1)


def test_word_of_an_earlier_life_is_no_news_whatever_the_order():
    slots = Slots()
    assert slots.is_news("a", 1, of_start=True)
    assert slots.is_news("a", 2, of_start=True)
    assert not slots.is_news("a", 1, of_start=False)
    assert not slots.is_news("a", 2, of_start=True)
    assert slots.is_news("a", 2, of_start=False)
    # The loss of a life was heard of before its start.
    assert slots.is_news("a", 3, of_start=False)
    assert not slots.is_news("a", 3, of_start=True)
    # Who doesn't count is believed.
    assert slots.is_news("a", 0, of_start=True)
    assert slots.is_news("a", 0, of_start=False)


def test_rooms_that_are_out_of_date_do_not_pile_up():
    slots = Slots()
    for name in "abc":
        slots.join(name, 2)
    for n in range(2000):
        sample = SampleId(f"p{n}", 0, 0)
        slots.occupy("abc"[n % 3], sample, 0)
        slots.release(sample)
    assert len(slots._roomy) < 200
    assert slots.roomiest() == "a"
