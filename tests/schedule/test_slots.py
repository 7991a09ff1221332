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
