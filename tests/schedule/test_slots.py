import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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


def test_a_worker_that_was_late_is_last_until_it_finishes_something():
    slots = Slots()
    slots.join("a", 3)
    slots.join("b", 1)
    third = SampleId("p", 0, 2)
    for sample in (FIRST, SECOND, third):
        slots.occupy("a", sample, 0)
    slots.release(FIRST, is_overdue=True)
    # A slot that another reason frees says nothing about it.
    slots.release(SECOND)
    assert slots.roomiest() == "b"
    slots.occupy("b", FIRST, 1)
    # With the others full it is better than nobody.
    assert slots.roomiest() == "a"
    slots.release(FIRST)
    assert slots.roomiest() == "b"
    slots.release(third, is_finished=True)
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


class SlotsMachine(RuleBasedStateMachine):
    """Against a dictionary of who runs where."""

    def __init__(self):
        super().__init__()
        self.slots = Slots()
        self.sizes = {}
        self.place = {}
        self.opened = 0

    def room(self, name):
        return self.sizes[name] - sum(w == name for w, _ in self.place.values())

    @rule(name=st.sampled_from("abc"), size=st.integers(0, 3))
    def join(self, name, size):
        if name not in self.sizes:
            self.slots.join(name, size)
            self.sizes[name] = size

    @rule(name=st.sampled_from("abcd"))
    def lose(self, name):
        ran = [(s, attempt) for s, (w, attempt) in self.place.items() if w == name]
        assert self.slots.lose(name) == ran
        self.sizes.pop(name, None)
        self.place = {s: p for s, p in self.place.items() if p[0] != name}

    @rule(attempt=st.integers(0, 3))
    def occupy(self, attempt):
        worker = self.slots.roomiest()
        if worker is not None:
            self.opened += 1
            sample = SampleId(f"p{self.opened}", 0, 0)
            self.slots.occupy(worker, sample, attempt)
            self.place[sample] = worker, attempt

    @rule(index=st.integers(0, 9))
    def release(self, index):
        known = [*self.place, SampleId("unknown", 0, 0)]
        sample = known[index % len(known)]
        assert self.slots.release(sample) == self.place.pop(sample, None)

    @invariant()
    def agrees(self):
        assert self.slots.running() == tuple(self.place)
        # Dictionaries keep the order of joining, and `max` takes the first of equals.
        roomy = [name for name in self.sizes if self.room(name) > 0]
        assert self.slots.roomiest() == max(roomy, key=self.room, default=None)


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
)
