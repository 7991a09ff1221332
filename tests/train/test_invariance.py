"""Gradients and metrics do not depend on how the work was cut, ordered or placed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.settings import Mesh
from jigsaw_jax.train import packing, sequences
from jigsaw_jax.train.gradient import Policies, Rewards
from tests.train.make_groups import (
    NUM_GROUPS,
    NUM_SAMPLES,
    OBJECTIVES,
    assert_near,
    assert_same,
    every_objective,
    fresh_learner,
    make_group,
    make_groups,
    run,
    update_once,
)

EVERY_OBJECTIVE = every_objective("gspo")


def groups_of_uneven_size():
    return [make_group(p, rewards=[float(p), 1.0, None]) for p in range(NUM_GROUPS)]


@EVERY_OBJECTIVE
def test_streamed_groups_give_the_update_of_one_batch(name):
    train, groups = run(OBJECTIVES[name]), groups_of_uneven_size()
    whole = update_once(train, [groups])
    assert_near(whole, update_once(train, [[group] for group in groups]))
    assert_near(whole, update_once(train, [groups[2:], groups[1::-1]]))


@EVERY_OBJECTIVE
@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 2},
        pytest.param({"rows": 16, "row_tokens": 40}, marks=pytest.mark.slow),
        pytest.param({"rows": 1, "row_tokens": 200}, marks=pytest.mark.slow),
        pytest.param({"logprob_chunk": 24}, marks=pytest.mark.slow),
        pytest.param({"remat": True}, marks=pytest.mark.slow),
        pytest.param({"remat": True, "remat_save": "products"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_rows_and_micro_batches_do_not_matter(name, changes):
    objective, groups = OBJECTIVES[name], groups_of_uneven_size()
    whole = update_once(run(objective), [groups])
    assert_near(whole, update_once(run(objective, **changes), [groups]))


@pytest.mark.slow
@EVERY_OBJECTIVE
def test_eight_devices_give_the_update_of_one(name):
    mesh = Mesh(data=2, fsdp=2, tensor=2, shared=True)
    groups = groups_of_uneven_size()
    one = update_once(run(OBJECTIVES[name]), [groups])
    assert_near(one, update_once(run(OBJECTIVES[name], mesh=mesh), [groups]))


def test_weights_and_moments_are_spread_over_the_mesh():
    mesh = Mesh(data=2, fsdp=2, tensor=2, shared=True)
    state = fresh_learner(run(OBJECTIVES["gspo"], mesh=mesh)).abstract_state()
    (_, adam, _) = state["opt_state"]
    for tree in (state["params"], adam.mu, adam.nu):
        query = tree["layers"]["000"]["query"]
        assert query.sharding.shard_shape(query.shape) == (8, 2, 8)


def test_the_same_calls_give_the_same_bits():
    calls = [[group] for group in groups_of_uneven_size()]
    train = run(OBJECTIVES["gspo"])
    assert_same(update_once(train, calls), update_once(train, calls))


@EVERY_OBJECTIVE
@pytest.mark.parametrize("poison", ["random", np.nan, np.inf])
def test_what_is_padded_or_masked_changes_no_bit(name, poison):
    train = run(OBJECTIVES[name])
    groups = [make_group(p, multi_turn=p == 0) for p in range(2)]
    learner = fresh_learner(train)
    trajectories = sequences.trajectories(groups, mask_truncated=False)
    (batch,) = packing.pack(trajectories, packing.shapes_of(train))
    scores = sequences.scores_of(groups, NUM_GROUPS, NUM_SAMPLES)
    rewards = Rewards(
        rewards_PG=scores.rewards_PG,
        lengths_PG=scores.lengths_PG,
        kl_PG=np.zeros_like(scores.rewards_PG),
        version=np.asarray(0, np.int32),
    )

    def totals(batch):
        state = learner.state()
        policies = Policies(round=None, reference=state.get("reference_params"))
        programs = learner._programs
        _, zeros = programs.start()
        added = programs.add_policy(
            learner.params, policies, zeros, batch=batch, rewards=rewards
        )
        return jax.device_get(added)

    clean = totals(batch)
    rng = np.random.default_rng(0)
    is_padding = batch.segment_ids_RT == 0
    for place, values, high in (
        (is_padding, batch.tokens_RT, 16),
        (is_padding, batch.positions_RT, 32),
        (~batch.mask_RM, batch.index_RM, 32),
        (~batch.mask_RM, batch.targets_RM, 16),
        (~batch.mask_RM, batch.sequence_ids_RM, 9),
        (~batch.mask_RM, batch.places_RM, 12),
        (~batch.mask_RM, batch.versions_RM, 2),
    ):
        values[place] = rng.integers(0, high, place.sum())
    bad = rng.normal(size=batch.logprobs_RM.shape) if poison == "random" else poison
    batch.logprobs_RM[...] = np.where(batch.mask_RM, batch.logprobs_RM, bad)
    spoilt = totals(batch)
    assert_same(clean, spoilt)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(clean))


@EVERY_OBJECTIVE
@pytest.mark.parametrize("row_tokens", [pytest.param(32, marks=pytest.mark.slow), 64])
def test_a_shared_prompt_changes_nothing(name, row_tokens):
    """Rows of 64 hold whole groups, rows of 32 parts of them."""
    groups = groups_of_uneven_size()
    train = run(OBJECTIVES[name])
    shared = run(OBJECTIVES[name], shared_prefix=True, row_tokens=row_tokens)
    assert_near(update_once(train, [groups]), update_once(shared, [groups]))


def test_a_shared_prompt_takes_fewer_rows():
    groups = make_groups()
    trajectories = sequences.trajectories(groups, mask_truncated=False)

    def num_inputs(train):
        batches = packing.pack(trajectories, packing.shapes_of(train))
        return sum(int((batch.segment_ids_RT > 0).sum()) for batch in batches)

    saved = sum(len(g.prompt.tokens) * (NUM_SAMPLES - 1) for g in groups)
    alone, shared = run(row_tokens=64), run(row_tokens=64, shared_prefix=True)
    assert num_inputs(alone) - num_inputs(shared) == saved


@pytest.mark.slow
def test_a_group_too_large_for_a_batch_is_split():
    train = run(rows=1)
    trajectories = sequences.trajectories([make_group(2)], mask_truncated=False)
    assert len(packing.pack(trajectories, packing.shapes_of(train))) > 1
    one, two = (update_once(t, [[make_group(2)]]) for t in (run(), train))
    assert_near(one, two)


def test_logprobs_of_a_packed_row_are_those_of_its_sequences_alone():
    train = run()
    learner = fresh_learner(train)
    groups = make_groups()
    metrics, _ = update_once(train, [groups])
    alone = [update_once(train, [[group]])[0] for group in groups]
    tokens = sum(m["tokens/trained"] for m in alone)
    for name in ("policy/entropy", "policy/kl_behavior", "mismatch/weight_mean"):
        mean = sum(m[name] * m["tokens/trained"] for m in alone) / tokens
        assert metrics[name] == pytest.approx(mean, rel=1e-5)
    assert metrics["tokens/trained"] == tokens
    assert jnp.isfinite(jnp.float32(metrics["loss"]))
    assert learner.compilations
