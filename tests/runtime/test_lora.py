"""Whole runs with adapters: one base in memory, and only adapters travel and stay."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jigsaw_jax import settings
from jigsaw_jax.runtime.local import LocalRuntime
from jigsaw_jax.runtime.offline import evaluate_checkpoint
from jigsaw_jax.store.files import StoreError
from tests.runtime.test_local import (
    assert_close,
    final_params,
    interrupt_at,
    make_train,
    rollouts,
    run,
    team_of,
)

pytestmark = pytest.mark.slow


def adapted(train, rank=2, **changes):
    decoder = dataclasses.replace(train.decoder, lora=settings.Lora(rank=rank))
    return dataclasses.replace(train, decoder=decoder, **changes)


def pointers(tree):
    return [x.unsafe_buffer_pointer() for x in jax.tree.leaves(tree)]


def test_a_run_has_one_base_and_saves_and_evaluates_adapters_alone(tmp_path):
    train = make_train(updates=2)
    train = adapted(
        train,
        objective=settings.Objective(kl="k3", kl_coefficient=0.1),
        data=dataclasses.replace(train.data, held_out=4),
    )
    runtime = run(train, tmp_path)
    crew = team_of(runtime)
    learner, sampler = crew.parts.learner, crew.loop.params
    base = {name: sampler[name] for name in ("ends", "layers")}
    # Sampler and learner share a device here.
    assert pointers(base) == pointers(learner.frozen)
    assert set(crew.publisher.params) == {"adapters"}
    changed = [np.any(x) for x in jax.tree.leaves(learner.export_params())]
    assert all(changed)

    manifest = tmp_path / "checkpoints" / "step-00000002" / "manifest.json"
    names = list(json.loads(manifest.read_text())["arrays"])
    assert names
    assert not [name for name in names if "ends" in name or "layers" in name]

    updates, result = evaluate_checkpoint(train, tmp_path)
    assert (updates, result.problems) == (2, 4)
    with pytest.raises(StoreError, match=r"adapters.*, 2\].*, 3\]"):
        evaluate_checkpoint(adapted(train, rank=3), tmp_path)
    # Other weights of the same shapes would load without a word.
    other = dataclasses.replace(train, seed=1, updates=3)
    with pytest.raises(StoreError, match="weights file that it was trained over"):
        evaluate_checkpoint(other, tmp_path)
    with pytest.raises(StoreError, match="weights file that it was trained over"):
        run(other, tmp_path)


def test_a_stopped_and_resumed_run_ends_as_one_that_was_never_stopped(tmp_path):
    objective = settings.Objective(
        kl="k3", kl_coefficient=0.1, old_policy="recompute", mismatch="truncate"
    )
    train = make_train(updates=6, size=2, reduction="ordered")
    train = adapted(train, objective=objective)
    whole = run(train, tmp_path / "whole")
    first = LocalRuntime(train, run_dir=tmp_path / "parts", resume=True, operative="")
    # Three updates are one round and a half, so the round's weights are restored.
    interrupt_at(first, 2)
    assert first.run() == 0
    resumed = run(train, tmp_path / "parts")
    assert rollouts(tmp_path / "whole") == rollouts(tmp_path / "parts")
    assert_close(final_params(whole), final_params(resumed), 0)
