import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jigsaw_jax.schedule.slots import Slots
from jigsaw_jax.schedule.states import LedgerError


def names(workers):
    return [worker.name for worker in workers]


def test_the_roomiest_worker_is_next_and_a_full_one_never():
    slots = Slots()
    assert slots.free == 0
    slots.join("a", 1)
    slots.join("b", 3)
    slots.join("c", 2)
    assert names(slots.occupy(2)) == ["b", "b"]
    assert names(slots.occupy(4)) == ["c", "a", "b", "c"]
    assert slots.free == 0
    with pytest.raises(AssertionError):
        slots.occupy(1)


def test_a_worker_that_was_late_is_last_until_it_finishes_something():
    slots = Slots()
    slots.join("a", 3)
    late, *_ = slots.occupy(3)
    slots.join("b", 1)
    slots.release(late, is_overdue=True)
    # A slot that another reason frees says nothing about it.
    slots.release(late)
    # With the others full it is better than nobody.
    assert names(slots.occupy(2)) == ["b", "a"]
    slots.join("c", 1)
    assert names(slots.occupy(2)) == ["c", "a"]
    slots.finished([late, late])
    slots.join("d", 1)
    assert names(slots.occupy(3)) == ["a", "a", "d"]


def test_a_lost_worker_takes_its_slots():
    slots = Slots()
    slots.join("a", 2)
    slots.join("b", 2)
    (worker,) = slots.occupy(1)
    assert slots.lose("a") is worker
    assert slots.lose("a") is None
    assert (slots.free, slots.total, slots.num_workers) == (2, 2, 1)
    assert names(slots.occupy(2)) == ["b", "b"]


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


def test_ranks_that_are_out_of_date_do_not_pile_up():
    slots = Slots()
    for name in "abc":
        slots.join(name, 2)
    for _ in range(2000):
        slots.finished(slots.occupy(5))
    assert len(slots._roomy) < 200
    assert names(slots.occupy(1)) == ["a"]


class SlotsMachine(RuleBasedStateMachine):
    """Against a list of who runs where."""

    def __init__(self):
        super().__init__()
        self.slots = Slots()
        self.sizes = {}
        self.late = set()
        self.running = []

    def room(self, name):
        return self.sizes[name] - names(self.running).count(name)

    @rule(name=st.sampled_from("abc"), size=st.integers(0, 3))
    def join(self, name, size):
        if name not in self.sizes:
            self.slots.join(name, size)
            self.sizes[name] = size

    @rule(name=st.sampled_from("abcd"))
    def lose(self, name):
        assert (self.slots.lose(name) is None) == (name not in self.sizes)
        self.sizes.pop(name, None)
        self.late.discard(name)
        self.running = [worker for worker in self.running if worker.name != name]

    @rule(num=st.integers(0, 4))
    def occupy(self, num):
        for worker in self.slots.occupy(min(num, self.slots.free)):
            # Dictionaries keep the order of joining, and `max` the first of equals.
            ranks = {
                name: (name not in self.late, self.room(name)) for name in self.sizes
            }
            roomy = [name for name in self.sizes if self.room(name)]
            assert worker.name == max(roomy, key=lambda name: ranks[name])
            self.running.append(worker)

    @rule(index=st.integers(0, 9), is_overdue=st.booleans())
    def release(self, index, is_overdue):
        if self.running:
            worker = self.running.pop(index % len(self.running))
            self.slots.release(worker, is_overdue=is_overdue)
            self.late |= {worker.name} if is_overdue else set()

    @rule(num=st.integers(0, 4))
    def finish(self, num):
        ended, self.running = self.running[:num], self.running[num:]
        self.slots.finished(ended)
        self.late -= set(names(ended))

    @invariant()
    def agrees(self):
        assert self.slots.free == sum(map(self.room, self.sizes))
        assert self.slots.total == sum(self.sizes.values())
        assert all(worker.free == self.room(worker.name) for worker in self.running)


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
)
