import itertools
from typing import Any

import pytest

from jigsaw_jax import records
from jigsaw_jax.records import GroupId, SampleId
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Pipeline as Settings
from tests.schedule.fake_shell import (
    IN_TURN,
    any_order,
    effects,
    finished,
    last,
    make,
    position,
    told_one_by_one,
    trained_uids,
)

SLOW_LEARNER = last("accumulate", "step")

# Modes.


def test_stream_trains_the_first_group_before_the_round_is_sampled():
    shell = finished(mode="stream")
    first_gradient = position(shell, records.AccumulateGroups)
    first_publish = position(shell, records.PublishVersion)
    later = shell.trace[first_gradient:first_publish]
    assert any(isinstance(item, records.SampleFinished) for item in later)


def test_sync_trains_nothing_before_the_whole_round_is_scored():
    shell = finished(mode="sync")
    first_gradient = position(shell, records.AccumulateGroups)
    scored = [
        i for i in shell.trace[:first_gradient] if isinstance(i, records.SampleScored)
    ]
    assert len(scored) == 4 * 2
    for publish in effects(shell, records.PublishVersion):
        assert publish.version <= 2


@pytest.mark.parametrize("reduction", ["arrival", "ordered"])
def test_stream_and_sync_train_the_same_groups_round_by_round(reduction):
    def rounds(mode, seed):
        shell = finished(any_order(seed), mode=mode, updates=8, reduction=reduction)
        updates = trained_uids(shell)
        return [set(updates[i] + updates[i + 1]) for i in range(0, 8, 2)]

    assert rounds("stream", 1) == rounds("sync", 2)


@pytest.mark.parametrize("mode", ["sync", "stream", "async"])
def test_ordered_reduction_fixes_the_updates_whatever_comes_first(mode):
    choices = {"mode": mode, "reduction": "ordered", "updates": 8}
    in_turn = [[f"p{2 * n}", f"p{2 * n + 1}"] for n in range(8)]
    for seed in range(10):
        assert trained_uids(finished(any_order(seed), **choices)) == in_turn


@pytest.mark.parametrize("redraws_max", [0, 2])
def test_ordered_runs_end_alike_when_groups_are_dropped_and_the_round_is_cut(
    redraws_max,
):
    def run(seed):
        shell = finished(
            any_order(seed),
            mode="stream",
            reduction="ordered",
            updates=7,
            groups_per_round=6,
            flat=0.6,
            redraws_max=redraws_max,
        )
        return shell.history.trained, shell.history.dropped

    first = run(0)
    assert set(first[1].values()) == {"zero_variance", "run_end"}
    for seed in range(1, 10):
        assert run(seed) == first


def test_the_same_order_of_events_gives_the_same_trace():
    def trace(seed):
        choices = {"flat": 0.3, "redraws_max": 1, "workers": (("a", 3), ("b", 3))}
        return finished(any_order(seed), **choices).trace

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


# Updates, tails, filters.


def test_an_update_closes_a_round_with_what_is_left_of_it():
    shell = finished(flat=0.3, mode="stream", groups_per_round=8, updates=3)
    in_round = [g for g in shell.history.dropped if int(g.uid[1:]) < 8]
    num_trained = 8 - len(in_round)
    assert 0 < num_trained < 8
    sizes = [len(groups) for groups in shell.history.trained]
    full, rest = divmod(num_trained, 2)
    assert sizes[: full + rest] == [2] * full + [1] * rest


def test_a_round_without_a_trainable_group_has_no_update_and_no_new_version():
    shell = finished(flat=1.0, empty_rounds_max=3)
    assert effects(shell, records.StepUpdate) == []
    assert effects(shell, records.PublishVersion) == []
    assert shell.pipeline.round == 3
    assert shell.pipeline.dropped_reasons() == {"zero_variance": 12}
    assert "3 rounds in a row" in shell.finish.error


def test_bounded_staleness_also_gives_up_when_nothing_can_train():
    shell = finished(flat=1.0, empty_rounds_max=3, mode="async", staleness_max=1)
    assert effects(shell, records.StepUpdate) == []
    assert shell.finish.error


def test_groups_given_up_between_trained_ones_do_not_end_a_run():
    shell = finished(
        flat=0.4, empty_rounds_max=3, mode="async", staleness_max=1, updates=30
    )
    # Three times U = 2 in a row would have ended it.
    assert shell.pipeline.dropped_reasons()["zero_variance"] > 3 * 2
    assert shell.finish.error is None


def test_keep_trains_flat_groups_and_drops_those_without_any_score():
    shell = finished(flat=1.0, filter="keep")
    assert trained_uids(shell) == [
        ["p0", "p1"],
        ["p2", "p3"],
        ["p4", "p5"],
        ["p6", "p7"],
    ]
    shell = finished(failing=1.0, filter="keep", empty_rounds_max=2)
    assert shell.pipeline.dropped_reasons() == {"no_score": 8}
    assert shell.finish.error


def test_a_dropped_prompt_is_drawn_anew_at_its_place_a_bounded_number_of_times():
    shell = finished(flat=1.0, empty_rounds_max=1, redraws_max=2)
    expected = {GroupId(f"p{i}", draw) for i in range(4) for draw in range(3)}
    assert set(shell.history.dropped) == expected


def test_a_handoff_is_the_longest_prefix_of_whole_groups_in_the_budget():
    shell = make(mode="sync", groups_per_update=4, token_budget=20, prompts=4)
    shell.run_to_end(IN_TURN)
    handed = [e.groups for e in effects(shell, records.AccumulateGroups)]
    tokens = {
        g: sum(
            e.num_tokens
            for e in shell.trace
            if isinstance(e, records.SampleFinished) and e.id[:2] == g
        )
        for groups in handed
        for g in groups
    }
    assert 1 < len(handed) < 4
    for groups, following in itertools.pairwise(handed):
        assert sum(tokens[g] for g in groups) + tokens[following[0]] > 20


def test_rewards_that_fail_do_not_count_as_variance():
    pipeline = started(groups_per_round=2, samples_per_group=3)
    drive(pipeline, "p0", (None, 0.0, None))
    assert pipeline.dropped_reasons() == {"zero_variance": 1}
    effect = drive(pipeline, "p1", (None, 0.0, 1.0))[-1]
    assert effect.groups == (GroupId("p1", 0),)


def started(uids=("p0", "p1"), slots=6, **settings) -> Any:
    """A bare pipeline whose first prompts are admitted."""
    small = {"groups_per_round": 2, "groups_per_update": 2, "samples_per_group": 2}
    pipeline = Pipeline(
        Settings(**{**small, **settings}), updates=4, checkpoint_every=1
    )
    pipeline.start(0.0)
    pipeline.apply(records.WorkerJoined(now_s=0.0, worker="a", slots=slots))
    pipeline.apply(records.PromptsOffered(now_s=0.0, uids=uids))
    return pipeline


def finish(pipeline, sample, *, attempt=0, version=0):
    event = records.SampleFinished(
        now_s=0.0,
        id=sample,
        attempt=attempt,
        num_tokens=1,
        version_min=version,
    )
    return told_one_by_one(pipeline.apply(event))


def drive(pipeline, uid, values, *, draw=0):
    """Finish and score a group's samples; the effects of the last score."""
    result = []
    for index, value in enumerate(values):
        sample = SampleId(uid, draw, index)
        finish(pipeline, sample)
        result = pipeline.apply(
            records.SampleScored(now_s=0.0, id=sample, attempt=0, value=value)
        )
    return result


def test_a_reward_that_is_not_finite_is_refused():
    pipeline = started()
    with pytest.raises(ValueError, match="must be finite"):
        drive(pipeline, "p0", (0.0, float("nan")))


# Failures.


def test_a_draw_that_fails_too_often_takes_its_group_along():
    pipeline = started(attempts_max=2)
    sample = SampleId("p0", 0, 1)

    def fail(attempt):
        event = records.SampleFailed(now_s=0.0, id=sample, attempt=attempt, reason="x")
        return told_one_by_one(pipeline.apply(event))

    again = fail(0)
    assert again == [records.AdmitSample(id=sample, attempt=1, worker="a", version=0)]
    assert fail(0) == []
    assert fail(1) == [
        records.CancelSample(id=SampleId("p0", 0, 0), attempt=0, worker="a"),
        records.DropGroup(group=GroupId("p0", 0), order=0, reason="attempts"),
    ]
    assert finish(pipeline, SampleId("p0", 0, 0)) == []
    assert pipeline.ledger_counts()["dropped"] == 2


def test_what_ran_on_a_lost_worker_runs_again_and_late_results_are_ignored():
    pipeline = started()
    pipeline.apply(records.WorkerLost(now_s=0.0, worker="a"))
    joined = records.WorkerJoined(now_s=0.0, worker="b", slots=3)
    effects = told_one_by_one(pipeline.apply(joined))
    assert [(e.attempt, e.worker) for e in effects] == [(1, "b")] * 3
    assert finish(pipeline, SampleId("p0", 0, 0)) == []
    assert pipeline.ledger_counts()["admitted"] == 3
    finish(pipeline, SampleId("p0", 0, 0), attempt=1)
    assert pipeline.ledger_counts()["waiting_env"] == 1


def test_a_sample_lost_while_it_is_scored_runs_again_after_the_rest_has_finished():
    pipeline = started(slots=2)
    lost = SampleId("p0", 0, 0)
    finish(pipeline, lost)
    pipeline.apply(
        records.SampleFailed(now_s=0.0, id=lost, attempt=0, reason="no payload")
    )
    first = finish(pipeline, SampleId("p0", 0, 1))
    second = finish(pipeline, SampleId("p1", 0, 0))
    admitted = [e for e in first + second if isinstance(e, records.AdmitSample)]
    assert (lost, 1) in [(e.id, e.attempt) for e in admitted]


def test_a_worker_that_joins_twice_has_lost_what_it_ran():
    pipeline = started()
    joined = records.WorkerJoined(now_s=0.0, worker="a", slots=2)
    effects = told_one_by_one(pipeline.apply(joined))
    assert [e.attempt for e in effects] == [1, 1]


def test_samples_go_to_the_worker_with_most_free_slots():
    pipeline = started(slots=1)
    joined = records.WorkerJoined(now_s=0.0, worker="b", slots=2)
    effects = told_one_by_one(pipeline.apply(joined))
    assert [e.worker for e in effects] == ["b", "b"]


@pytest.mark.parametrize("mode", ["stream", "async"])
def test_tokens_of_a_version_from_the_future_are_refused_and_counted(mode):
    pipeline = started(mode=mode)
    effects = finish(pipeline, SampleId("p0", 0, 0), version=1)
    assert pipeline.rejected == 1
    assert [e.attempt for e in effects] == [1]


# Bounded staleness.


@pytest.mark.parametrize("staleness_max", [0, 1, 2, 3])
def test_the_oldest_token_reaches_the_staleness_bound_and_never_passes_it(
    staleness_max,
):
    shell = finished(
        SLOW_LEARNER,
        mode="async",
        staleness_max=staleness_max,
        updates=8,
        workers=(("a", 100),),
    )
    assert max(max(ages) for ages in shell.history.ages) == staleness_max


def test_no_staleness_is_the_synchronous_run():
    def run(**choices):
        shell = finished(reduction="ordered", groups_per_round=2, **choices)
        admitted = [(e.id, e.version) for e in effects(shell, records.AdmitSample)]
        return admitted, shell.history.trained

    assert run(mode="async", staleness_max=0) == run(mode="sync")


def test_capacity_right_after_a_resume_is_what_the_bound_allows():
    choices = {
        "mode": "async",
        "staleness_max": 2,
        "groups_per_round": 4,
        "groups_per_update": 4,
        "workers": (("a", 1000),),
        "updates": 1000,
    }
    shell = make(**choices)
    shell.run_while(lambda: shell.pipeline.updates_done < 100)
    shell.crash(to_checkpoint=False)
    shell.run_while(lambda: {"offer", "publish"} & set(shell.kinds()), last("sample"))
    assert shell.pipeline.version == 100
    assert len({e[0][:2] for e in shell.admitted}) == 12


def test_data_that_ends_in_the_middle_of_an_update_ends_the_run():
    for mode, staleness in (("sync", 0), ("async", 0), ("async", 1), ("async", 3)):
        shell = finished(mode=mode, staleness_max=staleness, updates=99, prompts=7)
        assert [len(groups) for groups in shell.history.trained] == [2, 2, 2, 1]
        assert shell.finish.error is None


def test_a_run_without_any_data_ends():
    assert finished(prompts=0).finish == records.Finish()


# Slots.


def test_all_slots_are_busy_as_soon_as_a_version_is_published():
    shell = make(mode="stream", updates=20, workers=(("a", 5),))
    shell.run_while(lambda: not effects(shell, records.PublishVersion))
    assert not shell.running
    shell.run_while(lambda: shell.pipeline.version == 0)
    assert len(shell.running) == 5


def test_prompts_of_the_next_round_are_on_the_host_before_the_publish():
    shell = make(updates=20)
    shell.run_while(lambda: not effects(shell, records.PublishVersion))
    assert shell.pipeline.next_prompt_index == 8


def test_reports_of_what_was_never_asked_for_are_errors():
    pipeline = started()
    for event in (
        records.UpdateStepped(now_s=0.0, update=0),
        records.VersionPublished(now_s=0.0, version=1),
        records.PromptsOffered(now_s=0.0, uids=tuple("abc")),
    ):
        with pytest.raises(ValueError, match="must"):
            pipeline.apply(event)


def test_bounded_staleness_opens_no_group_that_the_run_cannot_train():
    shell = finished(SLOW_LEARNER, mode="async", staleness_max=3, workers=(("a", 100),))
    assert len({e.id.uid for e in effects(shell, records.AdmitSample)}) == 4 * 2
    assert shell.history.dropped == {}


def test_no_prompt_is_asked_for_that_the_last_round_does_not_need():
    shell = finished(updates=4, groups_per_round=4)
    assert shell.pipeline.next_prompt_index == 2 * 4
    assert shell.pipeline.outstanding() == ()


def test_a_round_opens_with_all_its_prompts_at_once():
    shell = make(updates=20, prefetch_groups=1)
    shell.run_while(lambda: shell.pipeline.round == 0)
    shell.run_while(lambda: set(shell.kinds()) - {"offer"}, last("offer"))
    assert shell.pipeline.version == 1
    assert shell.pipeline.next_prompt_index == 5
    assert not shell.running
    shell.run_while(lambda: "offer" in shell.kinds())
    assert len(shell.running) == 4


@pytest.mark.parametrize("mode", ["sync", "stream", "async"])
def test_reports_of_many_samples_are_as_an_event_for_each(mode):
    told = {"mode": mode, "groups_per_round": 2, "flat": 0.3, "redraws_max": 1}
    one, many = finished(**told), finished(**told, reports=True)
    assert one.trace == many.trace
    assert one.pipeline.snapshot() == many.pipeline.snapshot()


def test_a_sample_may_start_finish_and_be_scored_in_one_report():
    pipeline = Pipeline(
        Settings(groups_per_round=1, groups_per_update=1, samples_per_group=2),
        updates=1,
        checkpoint_every=1,
        asks_scores=False,
    )
    pipeline.start()
    pipeline.apply(records.WorkerJoined(now_s=0.0, worker="a", slots=2))
    pipeline.apply(records.PromptsOffered(now_s=0.0, uids=("p0",)))
    samples = [SampleId("p0", 0, g) for g in range(2)]
    report = records.SamplesReported(
        now_s=1.0,
        started=[(s, 0, 0.5) for s in samples],
        finished=[(s, 0, 3, 0) for s in samples],
        scored=[(s, 0, float(s.sample)) for s in samples],
    )
    (handed,) = pipeline.apply(report)
    assert isinstance(handed, records.AccumulateGroups)
    assert handed.groups == (GroupId("p0", 0),)
    before = pipeline.snapshot()
    assert pipeline.apply(report) == []
    assert pipeline.snapshot() == before


@pytest.mark.parametrize(("at_once", "sizes"), [(True, [4]), (False, [1])])
def test_groups_that_are_completed_at_once_share_a_hand_off(at_once, sizes):
    shell = make(groups_per_update=4, workers=(("a", 8),))
    shell.run_while(lambda: set(shell.kinds()) & {"offer", "sample"}, last("score"))
    scores = [
        records.SampleScored(
            now_s=0.0, id=SampleId(f"p{n}", 0, g), attempt=0, value=float(g)
        )
        for n in range(4)
        for g in range(2)
    ]
    calls = [scores] if at_once else [[score] for score in scores]
    effects = [effect for call in calls for effect in shell.pipeline.apply(*call)]
    handed = [e.groups for e in effects if isinstance(e, records.AccumulateGroups)]
    assert [len(groups) for groups in handed] == sizes
