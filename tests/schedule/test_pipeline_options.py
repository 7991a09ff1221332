"""Over-issue, early stop, refills and lost samples, as settings of a run."""

import pytest

from jigsaw_jax import records
from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Pipeline as Settings
from tests.schedule.fake_shell import (
    any_order,
    effects,
    finished,
    last,
    make,
    position,
    told_one_by_one,
    trained_uids,
)

ASYNC = {"mode": "async", "staleness_max": 2, "filter": "keep"}


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"mode": "stream", "over_issue_groups": 1}, "over_issue_groups"),
        ({**ASYNC, "over_issue_groups": 17}, "at most .* = 16"),
        ({"mode": "async", "early_stop": True}, "early_stop"),
        ({"mode": "stream", "early_stop": True}, "early_stop"),
        ({"mode": "async", "refill_groups_max": 1}, "refill_groups_max"),
        ({"request_order": "shortest"}, "request_order"),
        ({"lost_after_s": -1.0}, "lost_after_s"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        Settings(**wrong)


# Over-issue and early stop.


def test_no_more_groups_are_under_way_than_an_update_has_and_the_over_issue():
    shell = make(**ASYNC, over_issue_groups=1, updates=6)
    shell.run_while(lambda: set(shell.kinds()) & {"offer", "sample"})
    assert (
        len(shell.pipeline.outstanding()) - len(shell.pipeline._source.waiting()) == 3
    )


def stopped(**choices):
    """A run whose second update's samples run when the first is full."""
    shell = make(
        **ASYNC, early_stop=True, over_issue_groups=2, workers=(("a", 8),), **choices
    )
    shell.run_while(
        lambda: not effects(shell, records.PauseSample), last("sample", "step")
    )
    return shell


def test_a_full_update_stops_what_runs_and_its_version_lets_it_go_on():
    shell = stopped()
    pauses = effects(shell, records.PauseSample)
    paused = [(effect.id, effect.attempt) for effect in pauses]
    assert paused
    assert not shell.running
    assert shell.pipeline.ledger_counts()["paused"] == len(paused)
    shell.run_while(
        lambda: not effects(shell, records.VersionPublished), last("sample")
    )
    resumed = [e for e in effects(shell, records.AdmitSample) if e.is_resumed]
    # Before anything new, and in the order in which they first entered.
    firsts = [e.id for e in effects(shell, records.AdmitSample) if not e.is_resumed]
    assert [e.id for e in resumed] == sorted(
        (sample for sample, _ in paused), key=firsts.index
    )
    assert {(e.id, e.attempt) for e in resumed} == set(paused)
    assert {e.version for e in resumed} == {1}


def test_nothing_enters_while_an_update_that_is_full_is_not_yet_served():
    shell = stopped()
    before = len(effects(shell, records.AdmitSample))
    shell.join("b", 4)
    assert len(effects(shell, records.AdmitSample)) == before


def test_a_sample_that_ended_before_it_was_stopped_counts_and_does_not_run_again():
    shell = stopped()
    pause = effects(shell, records.PauseSample)[0]
    events = shell.pipeline.apply(
        records.SampleFinished(
            now_s=0.0, id=pause.id, attempt=pause.attempt, num_tokens=3, version_min=0
        )
    )
    assert events == [records.ScoreSample(id=pause.id, attempt=pause.attempt)]


def test_a_stopped_sample_whose_tokens_are_lost_is_drawn_again():
    shell = stopped()
    pause = effects(shell, records.PauseSample)[0]
    shell.fail(sorted(shell.paused).index(pause.id))
    assert pause.id not in shell.paused
    shell.run_to_end(any_order(0))
    attempts = [
        (e.attempt, e.is_resumed)
        for e in effects(shell, records.AdmitSample)
        if e.id == pause.id
    ]
    assert attempts[:2] == [(0, False), (1, False)]


@pytest.mark.parametrize("seed", range(5))
def test_no_token_is_sampled_under_an_older_version_than_the_newest_when_stopped(seed):
    shell = finished(any_order(seed), **ASYNC, early_stop=True, updates=8)
    ages = [age for update in shell.history.ages for age in update]
    assert max(ages) <= 2
    # What runs while the learner steps would be older for nothing.
    for number, item in enumerate(shell.trace):
        if isinstance(item, records.StepUpdate):
            later = shell.trace[number:]
            published = [isinstance(i, records.VersionPublished) for i in later]
            until = later[: published.index(True)] if any(published) else later
            assert not [i for i in until if isinstance(i, records.AdmitSample)]


# Refills.


@pytest.mark.parametrize("seed", range(6))
def test_a_round_that_loses_groups_trains_r_groups_nevertheless(seed):
    shell = finished(
        any_order(seed), flat=0.4, mode="stream", updates=6, refill_groups_max=50
    )
    assert [len(groups) for groups in shell.history.trained] == [2] * 6
    assert len(effects(shell, records.PublishVersion)) == 3 - 1
    assert shell.pipeline.dropped_reasons()["zero_variance"] > 2


@pytest.mark.parametrize("seed", range(6))
def test_a_resumed_round_replaces_no_group_that_had_trained(seed):
    shell = make(flat=0.4, mode="stream", updates=6, refill_groups_max=50)
    choose = any_order(seed)
    shell.run_while(lambda: not shell.history.trained, choose)
    shell.crash(to_checkpoint=False)
    shell.run_to_end(choose)
    assert [len(groups) for groups in shell.history.trained] == [2] * 6
    # Two updates are the round, before the crash and after it.
    until = shell.trace[: position(shell, records.VersionPublished)]
    assert sum(isinstance(item, records.UpdateStepped) for item in until) == 2
    assert shell.pipeline.version == 3 - 1


def test_a_barrier_waits_for_the_refills_too():
    shell = finished(flat=0.4, mode="sync", updates=2, refill_groups_max=50)
    first_gradient = position(shell, records.AccumulateGroups)
    drops = [
        i for i in shell.trace[:first_gradient] if isinstance(i, records.DropGroup)
    ]
    offered = {i.id.uid for i in effects(shell, records.AdmitSample)}
    assert drops
    assert len(offered) == 4 + len(drops)


def test_refills_end_at_their_limit_and_the_round_with_what_it_has():
    shell = finished(flat=1.0, mode="stream", refill_groups_max=3, empty_rounds_max=2)
    assert shell.pipeline.round == 2
    assert shell.pipeline.dropped_reasons() == {"zero_variance": 2 * (4 + 3)}
    assert "2 rounds in a row" in shell.finish.error


def test_refills_end_with_the_data():
    shell = finished(
        flat=0.5, mode="stream", prompts=9, refill_groups_max=50, updates=50
    )
    assert shell.finish.error is None
    ended = shell.pipeline.ended()
    assert len(ended) == 9


@pytest.mark.parametrize("mode", ["sync", "stream"])
def test_which_groups_a_round_has_does_not_depend_on_timing(mode):
    def groups(seed):
        shell = finished(
            any_order(seed), flat=0.4, mode=mode, updates=6, refill_groups_max=50
        )
        updates = trained_uids(shell)
        return [sorted(updates[i] + updates[i + 1]) for i in range(0, 6, 2)]

    first = groups(0)
    for seed in range(1, 8):
        assert groups(seed) == first


# Lost samples.


def test_a_sample_that_is_not_heard_of_is_sent_out_again_and_its_slot_is_free():
    shell = make(lost_after_s=60.0, workers=(("a", 1),))
    shell.run_while(lambda: not shell.running)
    (lost,) = effects(shell, records.AdmitSample)
    shell.apply(records.TimePassed(now_s=59.0))
    assert effects(shell, records.CancelSample) == []
    shell.apply(records.TimePassed(now_s=60.0))
    (cancelled,) = effects(shell, records.CancelSample)
    assert (cancelled.id, cancelled.attempt) == (lost.id, 0)
    assert len(shell.running) == 1
    # Behind what waits.
    assert list(shell.running) == [SampleId(lost.id.uid, 0, 1)]


def test_what_a_slow_worker_let_fall_overdue_goes_to_another():
    shell = make(lost_after_s=60.0, workers=(("slow", 4), ("quick", 4)))
    shell.run_while(lambda: len(shell.running) < 8)
    admitted = effects(shell, records.AdmitSample)
    assert [e.worker for e in admitted] == ["slow", "quick"] * 4
    for effect in admitted[1::2]:
        shell.pipeline.apply(
            records.SampleFinished(
                now_s=1.0, id=effect.id, attempt=0, num_tokens=3, version_min=0
            )
        )
    # Both have four free slots then, and the slow one joined first.
    found = told_one_by_one(shell.pipeline.apply(records.TimePassed(now_s=60.0)))
    again = [e for e in found if isinstance(e, records.AdmitSample)]
    assert [(e.worker, e.attempt) for e in again] == [("quick", 1)] * 4


def test_a_reward_that_never_answers_has_its_sample_drawn_again():
    shell = make(lost_after_s=60.0, attempts_max=2)
    shell.run_while(lambda: not shell.scoring, last("score"))
    (sample,) = shell.scoring
    shell.apply(records.TimePassed(now_s=60.0))
    counts = [e.attempt for e in effects(shell, records.AdmitSample) if e.id == sample]
    assert counts[0] == 0
    assert shell.pipeline.ledger_counts()["waiting_env"] == 0
    again = shell.pipeline._ledger.find(sample)[1].attempt
    assert again == 1


def test_the_message_that_nothing_can_train_names_the_limit_not_what_came_at_once():
    shell = make(
        flat=1.0,
        mode="async",
        staleness_max=3,
        empty_rounds_max=3,
        workers=(("a", 40),),
    )
    shell.run_while(lambda: set(shell.kinds()) & {"offer", "sample"}, last("score"))
    scores = [
        records.SampleScored(now_s=0.0, id=sample, attempt=0, value=0.5)
        for sample in shell.scoring
    ]
    assert len(scores) == 8 * 2
    shell.pipeline.apply(*scores)
    durable = records.CheckpointDurable(now_s=0.0, updates=0)
    (finish,) = shell.pipeline.apply(durable)
    assert isinstance(finish, records.Finish)
    # Eight groups are four rounds' worth, and all came in one call.
    assert finish.error is not None
    assert "in 3 rounds in a row" in finish.error


def test_a_loss_that_is_heard_of_after_the_restart_takes_nothing_away():
    shell = make(workers=())
    joined = [
        records.WorkerJoined(now_s=0.0, worker="a", slots=2, incarnation=life)
        for life in (1, 2)
    ]
    lost = records.WorkerLost(now_s=0.0, worker="a", incarnation=1)
    shell.slots["a"] = 2
    shell.run_while(lambda: "offer" in shell.kinds())
    shell.apply(joined[0])
    assert len(shell.running) == 2
    shell.running.clear()
    shell.apply(joined[1])
    assert len(shell.running) == 2
    for late in (lost, *joined):
        shell.ignores(late)


# A queue with an end.


def waiting(**limits):
    """What waits, and what was admitted, behind a learner that does not get on."""
    shell = make(groups_per_round=12, updates=6, filter="keep", **limits)
    shell.run_while(
        lambda: set(shell.kinds()) - {"accumulate", "step"}, last("accumulate", "step")
    )
    admitted = {effect.id.uid for effect in effects(shell, records.AdmitSample)}
    return shell, len(shell.pipeline._now.pending), len(admitted)


@pytest.mark.parametrize("limit", [{"queue_groups_max": 2}, {"queue_tokens_max": 20}])
def test_nothing_enters_while_as_much_waits_behind_a_busy_learner_as_may(limit):
    _, all_wait, all_admitted = waiting()
    assert all_admitted == 12
    assert all_wait == 12 - 1
    shell, wait, admitted = waiting(**limit)
    # Four slots go on with at most three groups that had begun.
    assert 2 <= wait <= 2 + 3
    assert admitted <= 1 + wait + 1
    shell.run_to_end(any_order(3))
    assert len(shell.history.trained) == 6


def test_a_barrier_that_waits_for_its_last_group_is_not_kept_from_it():
    for choices in ({"mode": "sync"}, {**ASYNC, "reduction": "ordered"}):
        limited = finished(**choices, queue_groups_max=1, queue_tokens_max=1)
        assert limited.finish.error is None
        assert len(limited.history.trained) == 4


# Admissions in parts.


def test_what_may_enter_enters_in_parts_in_the_same_order():
    def admitted(admissions_max):
        settings = Settings(
            groups_per_round=4,
            groups_per_update=2,
            samples_per_group=3,
            lost_after_s=8.0,
        )
        pipeline = Pipeline(
            settings, updates=8, checkpoint_every=4, admissions_max=admissions_max
        )
        pipeline.start()
        joined = records.WorkerJoined(now_s=0.0, worker="a", slots=100)
        offered = records.PromptsOffered(now_s=0.0, uids=("p", "q", "r", "s"))
        pipeline.apply(joined)
        parts = [pipeline.apply(offered)]
        patience_s = [pipeline.patience_s]
        while pipeline.patience_s == 0.0:
            parts.append(pipeline.apply(records.TimePassed(now_s=0.0)))
            patience_s.append(pipeline.patience_s)
        entered = [
            [e.id for e in told_one_by_one(part) if isinstance(e, records.AdmitSample)]
            for part in parts
        ]
        return entered, patience_s

    (whole,), (wait_s,) = admitted(None)
    parts, patience_s = admitted(5)
    assert wait_s == 2.0
    assert [len(part) for part in parts] == [5, 5, 2]
    assert [sample for part in parts for sample in part] == whole
    # Nothing is waited for before the last of them is in.
    assert patience_s == [0.0, 0.0, wait_s]
