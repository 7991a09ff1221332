from jigsaw_jax.records import SampleId, SampleStarted, TimePassed
from jigsaw_jax.schedule.batching import batches


def test_neighbouring_reports_of_samples_are_one_batch_and_others_stand_alone():
    started = [
        SampleStarted(now_s=0.0, id=SampleId("p", 0, g), attempt=0) for g in range(4)
    ]
    times = [TimePassed(now_s=0.0), TimePassed(now_s=0.0)]
    events = [*started[:2], *times, *started[2:]]
    assert list(batches(events)) == [started[:2], times[:1], times[1:], started[2:]]
    assert list(batches(started)) == [started]
