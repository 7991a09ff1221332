import collections

import pytest

from jigsaw_jax.records import (
    FinishReason,
    Group,
    GroupId,
    Prompt,
    Sample,
    SampleId,
    Score,
    Segment,
    UpdateStepped,
)
from jigsaw_jax.runtime.tally import Tally


def make_group(uid, values, lengths, version=3, finish=FinishReason.STOP):
    samples = tuple(
        Sample(
            id=SampleId(uid, 0, index),
            attempt=0,
            segments=(
                Segment(
                    tokens=(5,) * length,
                    logprobs=(-1.0,) * length,
                    versions=(version,) * length,
                ),
            ),
            finish_reason=finish,
        )
        for index, length in enumerate(lengths)
    )
    return Group(
        id=GroupId(uid, 0),
        order=0,
        prompt=Prompt(uid=uid, tokens=(1,), text="p", answer="2", task="t"),
        samples=samples,
        scores=tuple(Score(value=v, parts={"exact": v}) for v in values),
    )


def step(tally, update, end_s, learner, sampler):
    return tally.stepped(
        UpdateStepped(now_s=end_s, update=update),
        collections.deque(learner),
        collections.deque(sampler),
        staleness=(0.5, 2),
    )


def test_a_window_by_hand():
    tally = Tally({})
    tally.admitted(10.0)
    group = make_group("a", [0.0, 1.0], [2, 4])
    tally.handed(12.0)
    tally.trained(0, group)
    record = step(
        tally,
        0,
        20.0,
        learner=[(12.0, 14.0), (19.0, 20.0)],
        sampler=[(10.0, 13.0, 30), (13.0, 15.0, 20)],
    )
    assert record["time/update_s"] == 10.0
    assert record["time/wait_s"] == 7.0
    assert record["pipeline/trainer_wait_ratio"] == pytest.approx(0.7)
    assert record["pipeline/sampler_idle_ratio"] == pytest.approx(0.5)
    assert record["tokens/sampled"] == 50
    assert record["tokens/trained"] == 6
    assert record["pipeline/goodput_tokens_per_s"] == pytest.approx(0.6)
    assert record["time/first_dispatch_s"] == 2.0
    assert record["time/rollout_to_train_end_s"] == 10.0
    assert record["reward/mean"] == 0.5
    assert record["reward/std"] == 0.5
    assert record["reward/exact"] == 0.5
    assert record["completion/length_mean"] == 3.0
    assert record["completion/length_max"] == 4
    assert (record["staleness/mean"], record["staleness/max"]) == (0.5, 2)


def test_a_dropped_group_is_in_the_next_record_and_in_no_other():
    tally = Tally({})
    tally.admitted(0.0)
    tally.dropped(make_group("a", [1.0, 1.0], [1, 1]))
    tally.handed(1.0)
    tally.trained(0, make_group("b", [0.0, 1.0], [1, 1]))
    first = step(tally, 0, 2.0, [], [])
    tally.handed(2.5)
    tally.trained(1, make_group("c", [0.0, 0.0], [1, 1]))
    second = step(tally, 1, 3.0, [], [])
    assert first["reward/mean"] == 0.75
    assert first["group/zero_variance_ratio"] == 0.5
    assert first["tokens/trained"] == 2
    assert second["reward/mean"] == 0.0


def test_a_missing_reward_is_in_no_mean():
    tally = Tally({})
    tally.admitted(0.0)
    tally.handed(1.0)
    tally.trained(0, make_group("a", [None, 1.0, 0.0, 1.0], [1] * 4))
    record = step(tally, 0, 2.0, [], [])
    assert record["reward/mean"] == pytest.approx(2 / 3)
    assert record["reward/missing"] == 1


def test_rates_leave_the_first_update_out():
    tally = Tally({})
    tally.admitted(0.0)
    tally.handed(0.5)
    tally.trained(0, make_group("a", [0.0, 1.0], [1, 1]))
    step(tally, 0, 5.0, [(4.0, 5.0)], [(0.0, 4.0, 40)])
    tally.first_step(5.0, 8.0)
    tally.published(5.0, 5.1)
    tally.admitted(5.0)
    tally.handed(6.0)
    tally.trained(1, make_group("b", [0.0, 1.0], [1, 1]))
    step(tally, 1, 9.0, [(7.0, 9.0)], [(5.0, 7.0, 100)])
    tally.published(9.0, 9.1)
    summary = tally.summary()
    assert summary["sampled_tokens_per_s"] == 50.0
    assert summary["loop_tokens_per_s"] == 25.0
    assert summary["first_step_s"] == 5.0
    assert summary["process_start_to_first_step_s"] == 8.0
    assert summary["rollout_to_train_end_s_median"] == 4.5
    assert summary["trainer_wait_ratio"] == pytest.approx(6 / 9)


def test_a_call_under_way_at_the_end_of_an_update_counts_in_both_windows_by_part():
    tally = Tally({})
    tally.admitted(0.0)
    queue = collections.deque([(1.0, 4.0, 10)])
    tally.handed(0.5)
    tally.trained(0, make_group("a", [0.0, 1.0], [1, 1]))
    event = UpdateStepped(now_s=3.0, update=0)
    first = tally.stepped(event, collections.deque(), queue, staleness=(0.0, 0))
    tally.handed(3.5)
    tally.trained(1, make_group("b", [0.0, 1.0], [1, 1]))
    second = step(tally, 1, 5.0, [], [])
    assert first["pipeline/sampler_idle_ratio"] == pytest.approx(1 / 3)
    assert second["pipeline/sampler_idle_ratio"] == pytest.approx(0.5)
    assert (first["tokens/sampled"], second["tokens/sampled"]) == (0, 10)


def test_a_resumed_tally_goes_on_from_its_snapshot():
    tally = Tally({})
    tally.evaluated(0.25)
    tally.mismatch(1e-6)
    resumed = Tally(tally.snapshot())
    resumed.evaluated(0.75)
    resumed.mismatch(None)
    summary = resumed.summary()
    assert summary["eval_accuracy_first"] == 0.25
    assert summary["eval_accuracy_last"] == 0.75
    assert summary["logprob_abs_diff_max"] == 1e-6


def test_the_gap_from_a_publish_to_its_first_prefill_is_measured_once_a_version():
    tally = Tally({})
    assert tally.started(1.0) is None
    tally.admitted(1.0)
    tally.published(4.0, 5.0)
    assert tally.started(5.5) == (5.0, 5.5)
    assert tally.started(5.75) is None
    tally.handed(6.0)
    tally.trained(0, make_group("a", [0.0, 1.0], [1, 1]))
    record = step(tally, 0, 7.0, [], [])
    assert record["time/publish_to_prefill_s"] == 0.5
    # One that the sampler had already taken up when the publish was reported.
    tally.published(8.0, 9.0)
    assert tally.started(8.5) == (9.0, 9.0)
    assert tally.summary()["publish_to_prefill_s_median"] == 0.25
