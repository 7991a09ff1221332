"""Whole runs in one process: what was sampled and trained, by mode and by resume."""

import collections
import dataclasses
import json
import os
import pathlib
import signal
import threading

import jax
import numpy as np
import pytest

from jigsaw_jax import settings
from jigsaw_jax.runtime.local import LocalCrew, LocalRuntime
from jigsaw_jax.store import files
from jigsaw_jax.store.checkpoint import Checkpoints
from jigsaw_jax.store.files import StoreError

pytestmark = pytest.mark.slow


def make_train(updates=4, mode="stream", size=4, **pipeline):
    return settings.Train(
        updates=updates,
        decoder=settings.Decoder(
            vocab_size=258,
            num_layers=1,
            model_dim=32,
            hidden_dim=64,
            num_heads=2,
            num_kv_heads=1,
            head_dim=16,
            init_scale=0.1,
        ),
        data=settings.Data(source="random_bytes", prompt_tokens=6, held_out=0),
        reward=settings.Reward(weights={"lowercase_share": 1.0}, processes=0),
        sampler=settings.Sampler(
            slots=6, prompt_buckets=(8,), new_tokens_max=8, steps_per_call=3
        ),
        learner=settings.Learner(rows=4, row_tokens=32),
        optimizer=settings.Optimizer(learning_rate=1e-2),
        pipeline=settings.Pipeline(
            mode=mode,
            groups_per_round=4,
            groups_per_update=size,
            samples_per_group=3,
            filter="keep",
            **pipeline,
        ),
        evaluation=settings.Evaluation(every=-1),
        store=settings.Store(checkpoint_every=1, tensorboard=False),
        mesh=settings.Mesh(shared=True),
    )


def run(train, path):
    runtime = LocalRuntime(train, run_dir=path, resume=True, operative="")
    assert runtime.run() == 0
    return runtime


def interrupt_at(runtime, update):
    """Have the run get a Ctrl-C when it shows an update."""
    show = runtime.control._progress.show

    def interrupt(record):
        show(record)
        if record["update"] == update:
            os.kill(os.getpid(), signal.SIGINT)

    runtime.control._progress.show = interrupt


def rollout_rows(path: pathlib.Path):
    """Every line of the rollout log."""
    files = sorted((path / "rollouts").glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def rollouts(path: pathlib.Path):
    """Tokens of every completion that trained by (update, uid, sample)."""
    rows = {}
    for row in rollout_rows(path):
        if "dropped" not in row:
            tokens = [t for s in row["segments"] for t in s["tokens"]]
            rows[row["update"], row["uid"], row["sample"]] = tokens
    return rows


def team_of(runtime):
    crew = runtime.control._crew
    assert isinstance(crew, LocalCrew)
    return crew._team


def final_params(runtime):
    return jax.tree.map(np.asarray, team_of(runtime).parts.learner.params)


def assert_close(left, right, atol):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), left, right
    )


def test_stream_with_one_update_a_round_equals_sync(tmp_path):
    sync = run(make_train(mode="sync"), tmp_path / "sync")
    stream = run(make_train(mode="stream"), tmp_path / "stream")
    assert len(rollouts(tmp_path / "sync")) == 4 * 4 * 3
    assert rollouts(tmp_path / "sync") == rollouts(tmp_path / "stream")
    # Four Adam steps of 1e-2 on gradients that differ by their order of summation.
    assert_close(final_params(sync), final_params(stream), 1e-5)


def test_ordered_runs_are_bitwise_equal(tmp_path):
    train = make_train(reduction="ordered")
    first, second = run(train, tmp_path / "a"), run(train, tmp_path / "b")
    assert_close(final_params(first), final_params(second), 0)


@pytest.mark.parametrize(
    "objective",
    [
        settings.Objective(),
        # The reference, the round's frozen weights and the whole update's statistic.
        settings.Objective(
            advantage="reinforce_pp",
            kl="k3",
            kl_coefficient=0.1,
            kl_placement="reward",
            old_policy="recompute",
            mismatch="truncate",
        ),
    ],
)
def test_a_stopped_and_resumed_run_ends_as_one_that_was_never_stopped(
    tmp_path, objective
):
    train = make_train(updates=8, size=2, reduction="ordered")
    train = dataclasses.replace(train, objective=objective)
    whole = run(train, tmp_path / "whole")
    # Three updates are one round and a half, so the round's weights are restored.
    for update in (2, 4):
        first = LocalRuntime(
            train, run_dir=tmp_path / "parts", resume=True, operative=""
        )
        interrupt_at(first, update)
        assert first.run() == 0
    resumed = run(train, tmp_path / "parts")
    assert rollouts(tmp_path / "whole") == rollouts(tmp_path / "parts")
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == list(range(8))
    assert_close(final_params(whole), final_params(resumed), 0)


def test_one_version_trains_each_round_and_async_is_stale_by_at_most_s(tmp_path):
    run(make_train(updates=6, size=2), tmp_path / "stream")
    run(
        make_train(updates=6, mode="async", size=2, staleness_max=1),
        tmp_path / "async",
    )
    for name, most in (("stream", 0), ("async", 1)):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ages = [json.loads(line)["staleness/max"] for line in lines]
        assert len(ages) == 6
        assert max(ages) <= most


def test_ctrl_c_finishes_the_update_saves_and_ends_with_0(tmp_path):
    runtime = LocalRuntime(
        make_train(updates=500), run_dir=tmp_path, resume=True, operative=""
    )
    interrupt_at(runtime, 2)
    assert runtime.run() == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    done = summary["updates"]
    assert 3 <= done < 500
    assert summary["is_stopped"]
    assert Checkpoints(tmp_path / "checkpoints", read_only=True).latest_step() == done


def test_an_error_in_a_background_thread_ends_the_run_with_its_cause(
    tmp_path, monkeypatch
):
    runtime = LocalRuntime(
        make_train(updates=500), run_dir=tmp_path, resume=True, operative=""
    )
    show = runtime.control._progress.show

    def fail(*_):
        raise ZeroDivisionError

    def sabotage(record):
        show(record)
        monkeypatch.setattr(team_of(runtime).parts.learner, "accumulate", fail)

    runtime.control._progress.show = sabotage
    with pytest.raises(RuntimeError, match="the learner thread failed") as caught:
        runtime.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_nothing_compiles_after_the_warm_up_and_logprobs_agree(tmp_path):
    run(make_train(updates=6, size=2), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["compilations_after_warmup"] == 0
    assert 0 < summary["logprob_abs_diff_max"] < 1e-5


def test_a_run_that_has_ended_ends_again_at_once(tmp_path):
    train = make_train(updates=1)
    run(train, tmp_path)
    # Without this alarm a run that waits for an event would wait for ever.
    signal.alarm(600)
    try:
        again = run(train, tmp_path)
    finally:
        signal.alarm(0)
    assert again.control._crew.pipeline.updates_done == 1


def test_an_update_is_logged_in_the_round_and_version_that_it_trained(tmp_path):
    run(make_train(updates=5, size=2), tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    # Two updates a round, and a version after each round.
    assert [row["round"] for row in rows] == [0, 0, 1, 1, 2]
    assert len({tuple(row) for row in rows}) == 1
    # The second update of a round has no tokens of its own weights.
    mismatch = [row["mismatch/logprob_abs_max"] is None for row in rows]
    assert mismatch == [False, True, False, True, False]
    assert {row["policy/kl_ref"] for row in rows} == {None}
    assert [row["version"] for row in rows] == [0, 0, 1, 1, 2]
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == 3


def test_a_second_ctrl_c_shows_the_cursor_again_before_it_ends(tmp_path, monkeypatch):
    runtime = LocalRuntime(
        make_train(updates=50), run_dir=tmp_path, resume=True, operative=""
    )
    stopped = []
    progress = runtime.control._progress
    show, stop = progress.show, progress.stop
    monkeypatch.setattr(progress, "stop", lambda: (stopped.append(1), stop()))
    # The process is to go on here, so what would end it only notes its code.
    codes = []
    monkeypatch.setattr(os, "_exit", lambda code: codes.append((code, len(stopped))))

    def interrupt(record):
        show(record)
        for _ in range(2 - len(codes)):
            os.kill(os.getpid(), signal.SIGINT)

    runtime.control._progress.show = interrupt
    runtime.run()
    assert codes[0] == (130, 1)


def test_evaluations_longer_than_an_update_do_not_meet(tmp_path):
    # 40 completions in 6 slots outlast an update of 3 x 4 that was under way.
    train = make_train(updates=8, mode="async", staleness_max=2)
    train = dataclasses.replace(
        train,
        data=dataclasses.replace(train.data, held_out=20),
        evaluation=settings.Evaluation(every=1, samples=2),
    )
    run(train, tmp_path)
    lines = (tmp_path / "evaluations.jsonl").read_text().splitlines()
    updates = [json.loads(line)["updates"] for line in lines]
    assert updates[0] == 0
    assert updates[-1] == 8
    assert len(updates) > 2
    assert updates == sorted(set(updates))


def test_a_disk_that_refuses_a_checkpoint_ends_the_run_with_what_the_store_says(
    tmp_path, monkeypatch
):
    runtime = LocalRuntime(
        make_train(updates=500), run_dir=tmp_path, resume=True, operative=""
    )
    save = runtime.control._record.vault.save

    def refuse(updates, *args, **kwargs):
        if updates == 2:
            raise StoreError("cannot save checkpoint 2: No space left on device")
        save(updates, *args, **kwargs)

    monkeypatch.setattr(runtime.control._record.vault, "save", refuse)
    with pytest.raises(StoreError, match="No space left"):
        runtime.run()
    alive = {thread.name for thread in threading.enumerate()}
    assert not alive & {"learner", "sampler"}
    # And what was saved before stands.
    assert run(make_train(updates=3), tmp_path).control._crew.is_resumed


def test_a_save_that_fails_in_the_background_ends_the_run_before_the_next(
    tmp_path, monkeypatch
):
    train = make_train(updates=1_000_000)
    store = dataclasses.replace(train.store, checkpoint_every=1_000_000)
    train = dataclasses.replace(train, store=store)
    write_text = files.write_text

    def refuse(path, text):
        if path.name == "record.json":
            raise OSError(28, "No space left on device")
        write_text(path, text)

    monkeypatch.setattr(files, "write_text", refuse)
    # Only the first save fails, and the next would come in days.
    signal.alarm(600)
    try:
        with pytest.raises(StoreError, match=r"checkpoint 0 .*No space left"):
            run(train, tmp_path)
    finally:
        signal.alarm(0)


def test_what_is_stopped_early_goes_on_and_trains_in_time(tmp_path):
    train = make_train(
        updates=6,
        mode="async",
        size=2,
        staleness_max=2,
        over_issue_groups=3,
        early_stop=True,
        request_order="longest_first",
        admission="frontier_adaptive",
        lost_after_s=600.0,
    )
    run(train, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["groups_committed"] == 6 * 2
    assert not summary["is_stopped"]
    assert summary["compilations_after_warmup"] == 0
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert max(record["staleness/max"] for record in records) <= 2
    assert records[-1]["frontier/groups"] >= 2
    assert summary["publish_to_prefill_s_median"] >= 0
    # Versions 1 to 5; the last ones may find nothing that has not begun.
    assert 1 <= (tmp_path / "events.jsonl").read_text().count('"gap"') <= 5


def test_a_round_that_loses_groups_is_filled_up_with_new_prompts(tmp_path):
    train = make_train(updates=4, refill_groups_max=8)
    train = dataclasses.replace(
        train, pipeline=dataclasses.replace(train.pipeline, filter="drop")
    )
    run(train, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    updates = collections.Counter(update for update, _, _ in rollouts(tmp_path))
    assert dict(updates) == dict.fromkeys(range(4), 4 * 3)
    # Groups without a lower-case letter: there are some in any such run.
    num_dropped = summary["groups_dropped"]["zero_variance"]
    assert num_dropped > 0
    assert summary["groups_committed"] == 4 * 4
    # Every group that was sampled whole is in the log, with what became of it.
    groups = collections.defaultdict(list)
    for row in rollout_rows(tmp_path):
        groups[row["update"], row["uid"], row["order"]].append(row)
    reasons = collections.Counter(rows[0].get("dropped") for rows in groups.values())
    assert reasons["zero_variance"] == num_dropped
    assert reasons[None] == 4 * 4
    for rows in groups.values():
        rewards = np.array([row["reward"] for row in rows])
        is_dropped = "dropped" in rows[0]
        assert is_dropped == (rewards.max() == rewards.min())
        if not is_dropped:
            expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            found = [row["advantage"] for row in rows]
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_run_in_which_nothing_can_train_leaves_what_it_sampled(tmp_path):
    train = make_train(empty_rounds_max=2)
    train = dataclasses.replace(
        train,
        reward=settings.Reward(weights={"exact": 1.0}, processes=0),
        pipeline=dataclasses.replace(train.pipeline, filter="drop"),
    )
    runtime = LocalRuntime(train, run_dir=tmp_path, resume=True, operative="")
    assert runtime.run() == 1
    rows = rollout_rows(tmp_path)
    # Two rounds of four groups; a third may have been under way.
    assert len(rows) >= 2 * 4 * 3
    assert {(row["dropped"], row["reward"]) for row in rows} == {("zero_variance", 0.0)}
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == [
        "update-000000.dropped.jsonl"
    ]
