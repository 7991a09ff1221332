from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.deadlines import Deadlines

FIRST, SECOND = SampleId("p", 0, 0), SampleId("p", 0, 1)


def test_a_sample_is_due_once_and_not_before_its_time():
    deadlines = Deadlines(10.0)
    deadlines.set(FIRST, 1.0)
    deadlines.set(SECOND, 5.0)
    assert list(deadlines.due(10.9)) == []
    assert list(deadlines.due(11.0)) == [FIRST]
    assert list(deadlines.due(99.0)) == [SECOND]
    assert list(deadlines.due(99.0)) == []


def test_only_the_newest_deadline_counts_and_none_of_what_is_back():
    deadlines = Deadlines(10.0)
    deadlines.set(FIRST, 0.0)
    deadlines.set(SECOND, 0.0)
    deadlines.set(FIRST, 5.0)
    deadlines.clear(SECOND)
    assert list(deadlines.due(10.0)) == []
    assert list(deadlines.due(15.0)) == [FIRST]


def test_zero_waits_for_ever():
    deadlines = Deadlines(0.0)
    deadlines.set(FIRST, 0.0)
    assert list(deadlines.due(1e9)) == []


def test_deadlines_that_do_not_count_do_not_pile_up():
    deadlines = Deadlines(1e9)
    deadlines.set(FIRST, 0.0)
    for turn in range(2000):
        deadlines.set(SECOND, float(turn))
        deadlines.clear(SECOND)
    assert len(deadlines._ends) == 1
    assert list(deadlines.due(1e9)) == [FIRST]
