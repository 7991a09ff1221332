import json

import pytest

from jigsaw_jax import records
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Pipeline as Settings
from tests.schedule.fake_shell import (
    IN_TURN,
    any_order,
    effects,
    finished,
    make,
    position,
    trained_uids,
)


def test_checkpoints_come_every_so_many_updates_and_at_the_end():
    shell = finished(updates=5, checkpoint_every=2)
    assert effects(shell, records.WriteCheckpoint) == [
        records.WriteCheckpoint(updates=2),
        records.WriteCheckpoint(updates=4),
        records.WriteCheckpoint(updates=5, is_final=True),
    ]
    assert position(shell, records.Finish) > position(
        shell, records.CheckpointDurable, -1
    )


def test_the_last_update_has_one_checkpoint_when_both_rules_ask_for_it():
    shell = finished(updates=4, checkpoint_every=2)
    assert [e.updates for e in effects(shell, records.WriteCheckpoint)] == [2, 4]


def test_a_stop_between_updates_saves_and_leaves_the_rest_to_a_later_run():
    shell = make(updates=8, checkpoint_every=100)
    shell.run_while(lambda: shell.pipeline.updates_done < 2)
    shell.run_while(lambda: shell.pipeline.version < 1)
    shell.stop()
    assert not shell.running
    shell.run_to_end(IN_TURN)
    assert shell.pipeline.updates_done == 2
    assert shell.pipeline.dropped_reasons() == {}
    shell.crash(to_checkpoint=True)
    shell.run_to_end(IN_TURN)
    assert shell.pipeline.updates_done == 8
    assert {g.uid for g in shell.history.ended()} == {f"p{i}" for i in range(16)}


def test_a_stop_within_an_update_finishes_that_update_and_no_other():
    shell = make(updates=8, checkpoint_every=100)
    shell.run_while(lambda: not effects(shell, records.AccumulateGroups))
    shell.stop()
    shell.run_to_end(any_order(3))
    assert shell.pipeline.updates_done == 1
    assert effects(shell, records.WriteCheckpoint) == [
        records.WriteCheckpoint(updates=1, is_final=True)
    ]


def test_a_finished_run_that_is_resumed_finishes_and_a_longer_one_goes_on():
    shell = finished(updates=4)
    shell.crash(to_checkpoint=True)
    assert shell.finish == records.Finish()
    assert not shell.tasks
    shell.run.updates = 6
    shell.crash(to_checkpoint=True)
    shell.run_to_end(IN_TURN)
    assert shell.pipeline.updates_done == 6
    assert {g.uid for g in shell.history.ended()} == {f"p{i}" for i in range(12)}


RESUMED = {
    "keep": {"filter": "keep", "flat": 0.4},
    "keep, cut round": {"filter": "keep", "updates": 5, "groups_per_round": 6},
    "drop, on-policy": {"flat": 0.4, "redraws_max": 1, "groups_per_round": 2},
    "drop, ordered": {
        "flat": 0.4,
        "redraws_max": 1,
        "reduction": "ordered",
        "groups_per_round": 6,
        "updates": 5,
    },
    "sync, dropped": {"mode": "sync", "flat": 0.4, "redraws_max": 1, "updates": 4},
    "async lag 2": {
        "mode": "async",
        "staleness_max": 2,
        "filter": "keep",
        "samples_per_group": 4,
        "updates": 12,
    },
    "end of data": {"flat": 0.3, "prompts": 7, "updates": 99, "reduction": "ordered"},
}


@pytest.mark.parametrize("to_checkpoint", [False, True])
@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("stride", [17, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_event_ends_what_an_unharmed_one_ends(
    name, to_checkpoint, stride
):
    choices = {"checkpoint_every": 1, "workers": (("a", 5),), **RESUMED[name]}
    unharmed = finished(any_order(7), **choices).history
    committed = {g for groups in unharmed.trained for g in groups}
    step, is_over = 0, False
    while not is_over:
        shell = make(**choices)
        choose = any_order(step)
        for _ in range(step):
            if shell.finish is None:
                shell.deliver(choose(shell.kinds()))
        is_over = shell.finish is not None
        shell.crash(to_checkpoint=to_checkpoint)
        shell.run_to_end(choose)
        assert shell.history.ended() == unharmed.ended()
        if choices.get("filter") == "keep":
            trained = {g for groups in shell.history.trained for g in groups}
            assert trained == committed
        step += stride


def test_the_frozen_version_of_a_round_survives_a_kill_in_its_middle():
    shell = make(updates=8, checkpoint_every=1)
    shell.run_while(lambda: shell.pipeline.updates_done < 3)
    shell.crash(to_checkpoint=False)
    pipeline = shell.pipeline
    assert (pipeline.updates_done, pipeline.version, pipeline.version_updates) == (
        3,
        1,
        2,
    )


def test_the_prompts_that_a_resumed_run_needs_are_named_with_their_positions():
    shell = make(updates=8)
    shell.run_while(lambda: not shell.pipeline.updates_done)
    trained = {uid for groups in trained_uids(shell) for uid in groups}
    shell.crash(to_checkpoint=False)
    position = shell.pipeline.next_prompt_index
    expected = [(f"p{i}", i) for i in range(position) if f"p{i}" not in trained]
    assert list(shell.pipeline.outstanding()) == expected


def test_a_snapshot_of_another_mode_is_refused():
    snapshot = json.loads(json.dumps(make(mode="stream").pipeline.snapshot()))
    other = Pipeline(Settings(mode="sync"), updates=1, checkpoint_every=1)
    with pytest.raises(ValueError, match=r"Pipeline\.mode must be"):
        other.restore(snapshot)


def test_a_resumed_asynchronous_run_samples_nothing_under_a_stale_version():
    shell = make(mode="async", staleness_max=1, updates=8)
    shell.run_while(lambda: shell.pipeline.updates_done < 3)
    assert shell.pipeline.version == 2
    shell.crash(to_checkpoint=False)
    assert effects(shell, records.PublishVersion)[-1].version == 3
    assert not shell.running
    shell.run_while(lambda: shell.pipeline.version < 3)
    assert shell.running
