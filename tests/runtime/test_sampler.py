import pytest

from jigsaw_jax.records import SampleId
from jigsaw_jax.runtime.sampler import StepTimes
from jigsaw_jax.sample.loop import LoopReport


def said(calls):
    """What is said of (active, tokens, started) calls of 4 steps in 2 s."""
    times = StepTimes(4)
    reports = [
        LoopReport(started=started, finished=(), num_tokens=tokens, num_active=active)
        for active, tokens, started in calls
    ]
    found = [times.of(report, 1.0, 3.0) for report in reports]
    return [event and (event.sequences, event.step_s) for event in found]


def test_the_time_of_a_step_is_said_when_company_has_changed():
    calls = [(2, 8, ()), (2, 8, ()), (3, 12, ()), (2, 8, ())]
    assert said(calls) == [(2, 0.5), None, (3, 0.5), (2, 0.5)]


@pytest.mark.parametrize(
    "call",
    [(0, 0, ()), (2, 7, ()), (2, 8, ((SampleId("a", 0, 0), 0),))],
    ids=["none", "part", "new"],
)
def test_a_call_that_prefills_or_ends_early_is_not_timed(call):
    assert said([call]) == [None]
