import pytest

from jigsaw_jax.simulation.writing import Writer, Writing


def writer_of(**costs):
    spans = []
    return Writer(Writing(**costs), lambda *span: spans.append(span)), spans


def test_both_are_slower_until_the_checkpoint_is_there():
    writer, spans = writer_of(alone_s=3.0, held=0.75, lost=0.5)
    assert writer.begin(10.0) == 10.0
    # A second of it is written before the learner works.
    assert writer.compute(11.0, 2.0) == pytest.approx(15.0)
    # One of the two that were left; the next is, for four seconds, beside two of work.
    assert writer.compute(15.0, 5.0) == pytest.approx(15.0 + 4.0 + 3.0)
    assert spans == [(10.0, pytest.approx(19.0))]
    assert writer.compute(30.0, 5.0) == 35.0


def test_a_save_waits_for_the_one_before():
    writer, spans = writer_of(alone_s=3.0, held=0.5, lost=0.5)
    writer.begin(0.0)
    # Half of the four seconds that it takes beside the learner count.
    assert writer.compute(0.0, 2.0) == pytest.approx(4.0)
    assert writer.begin(4.5) == pytest.approx(5.0)
    assert spans == [(0.0, pytest.approx(5.0))]
    # The second is all there long before the third.
    assert writer.begin(20.0) == 20.0
    assert spans[1] == (pytest.approx(5.0), pytest.approx(8.0))


def test_without_costs_nothing_changes():
    writer, spans = writer_of()
    assert writer.begin(1.0) == 1.0
    assert writer.compute(1.0, 2.0) == 3.0
    assert spans == []
