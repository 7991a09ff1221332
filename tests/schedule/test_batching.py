import itertools

from jigsaw_jax.records import SampleId, SampleStarted, TimePassed
from jigsaw_jax.schedule.batching import batch_key


def test_neighbouring_reports_of_samples_are_one_batch_and_others_stand_alone():
    started = [
        SampleStarted(now_s=0.0, id=SampleId("p", 0, g), attempt=0) for g in range(4)
    ]
    times = [TimePassed(now_s=0.0), TimePassed(now_s=0.0)]
    events = [*started[:2], *times, *started[2:]]
    batches = [list(batch) for _, batch in itertools.groupby(events, batch_key)]
    assert batches == [started[:2], times[:1], times[1:], started[2:]]
