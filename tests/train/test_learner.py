"""The learner against a naive one, and its life cycle."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.model import decoder as model
from jigsaw_jax.objective import policy
from jigsaw_jax.objective.advantage import advantages
from jigsaw_jax.objective.overlong import overlong_reward
from jigsaw_jax.runtime.compilations import CompilationCounter
from jigsaw_jax.settings import Mesh, Pipeline
from jigsaw_jax.train import sequences
from tests.train.make_groups import (
    NUM_GROUPS,
    NUM_SAMPLES,
    OBJECTIVES,
    assert_near,
    assert_same,
    every_objective,
    first_params,
    fresh_learner,
    make_group,
    make_groups,
    make_learner,
    run,
    update_once,
)

TEMPERATURE = 0.8
EVERY_OBJECTIVE = every_objective("recompute")


def unpacked(trajectories):
    """Arrays `[sequences, 20]`, a row each: tokens, mask and sampler logprobs."""
    tokens = np.zeros((len(trajectories), 20), np.int32)
    mask, logprobs = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, np.float32)
    segments = np.zeros(tokens.shape, np.int32)
    for row, t in enumerate(trajectories):
        num = len(t.tokens_T)
        tokens[row, :num], mask[row, :num] = t.tokens_T, t.is_trained_T
        logprobs[row, :num], segments[row, :num] = t.logprobs_T, 1
    return tuple(map(jnp.asarray, (tokens, segments, mask[:, 1:], logprobs[:, 1:])))


def naive_logprobs(train, params, tokens, segments, temperature=TEMPERATURE):
    """Logprobs of tokens 1 to 19 of each row, and entropies."""
    positions = jnp.broadcast_to(jnp.arange(20), tokens.shape)
    hidden = model.forward(train.decoder, params, tokens, positions, segments)
    logits = model.logits(train.decoder, params, hidden)[:, :-1] / temperature
    logp = jax.nn.log_softmax(logits)
    entropies = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
    chosen = jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1)[..., 0]
    return chosen, entropies


def naive_gradient(train, groups, params, frozen):
    """Loss and gradient of the update from whole sequences, one in a row."""
    objective = train.objective
    scores = sequences.scores_of(groups, len(groups), NUM_SAMPLES)
    kept = sequences.trajectories(groups, mask_truncated=objective.mask_truncated)
    tokens, segments, mask_RM, sampler_RM = unpacked(kept)
    places = np.array([t.place for t in kept])
    shaped_PG = jnp.asarray(scores.rewards_PG) + overlong_reward(
        jnp.asarray(scores.lengths_PG),
        12,
        buffer=objective.overlong_buffer,
        penalty=objective.overlong_penalty,
    )

    def loss(params, frozen):
        logprobs_RM, entropies_RM = naive_logprobs(train, params, tokens, segments)
        first_RM, _ = naive_logprobs(train, frozen, tokens, segments)
        is_recomputed = objective.old_policy == "recompute"
        old_RM = first_RM if is_recomputed else sampler_RM
        rewards_PG = shaped_PG
        if objective.kl_placement == "reward":
            kl_R = jnp.sum(jnp.where(mask_RM, old_RM - first_RM, 0), axis=1)
            taken = jnp.zeros(rewards_PG.size).at[places].set(kl_R)
            taken = objective.kl_coefficient * taken
            rewards_PG -= taken.reshape(rewards_PG.shape)
        own = advantages(objective.advantage, rewards_PG).ravel()[places]
        total, weight, _ = policy.policy_loss(
            objective,
            policy.Tokens(
                logprobs_RM=logprobs_RM,
                entropies_RM=entropies_RM,
                old_logprobs_RM=old_RM,
                sampler_logprobs_RM=sampler_RM,
                reference_logprobs_RM=first_RM,
                advantages_RM=jnp.broadcast_to(own[:, None], mask_RM.shape),
                sequence_ids_RM=jnp.ones(mask_RM.shape, int),
                mask_RM=mask_RM,
            ),
            norm_tokens=12,
        )
        return total / weight

    return jax.jit(jax.value_and_grad(loss))(params, frozen)


def mixed_groups():
    """Observations, truncation, a missing reward and a group without variance."""
    return [
        make_group(0, multi_turn=True),
        make_group(1, truncated=True, rewards=[1.0, 0.0, 0.0]),
        make_group(2, rewards=[None, 1.0, 0.0]),
        make_group(3, rewards=[0.9, 0.9, 0.9]),
    ]


@pytest.mark.slow
@EVERY_OBJECTIVE
def test_two_updates_of_a_round_are_those_of_a_naive_learner(name):
    train = run(OBJECTIVES[name])
    learner = fresh_learner(train)
    params = frozen = learner.params
    for update, groups in enumerate((mixed_groups(), make_groups())):
        learner.accumulate(groups, update)
        metrics = learner.step(update)
        loss, gradient = naive_gradient(train, groups, params, frozen)
        # Logits of float32 sequences of up to 20 tokens, unpacked against packed.
        assert metrics["loss"] == pytest.approx(float(loss), abs=1e-5)
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradient)))
        assert metrics["optim/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
        if update == 0:
            # The first step is g / (|g| / 100 + 1); see the optimizer of `run`.
            stepped = jax.tree.map(
                lambda x, g: x - g / (jnp.abs(g) / 100 + 1), params, gradient
            )
            assert_near(learner.params, stepped, atol=1e-5)
        params = learner.params


def test_the_stop_token_has_a_gradient():
    group = make_group(0)
    one = [
        dataclasses.replace(
            s,
            segments=(
                dataclasses.replace(
                    s.segments[0], tokens=(0,), logprobs=(-2.0,), versions=(0,)
                ),
            ),
        )
        for s in group.samples
    ]
    metrics, _ = update_once(run(), [[dataclasses.replace(group, samples=tuple(one))]])
    assert metrics["tokens/trained"] == NUM_SAMPLES
    assert metrics["optim/grad_norm"] > 0.01


@pytest.mark.parametrize("rewards", [[None] * NUM_SAMPLES, "no groups"])
def test_an_update_without_a_trained_token_touches_nothing(rewards):
    learner = fresh_learner(run())
    learner.accumulate(make_groups(), 0)
    learner.step(0)
    before = jax.device_get(learner.state())
    if rewards != "no groups":
        learner.accumulate([make_group(0, rewards=rewards)], 1)
    metrics = learner.step(1)
    assert (metrics["optim/skipped"], metrics["tokens/trained"]) == (1, 0)
    assert_same(before, jax.device_get(learner.state()))
    learner.accumulate(make_groups(), 2)
    assert learner.step(2)["optim/skipped"] == 0


@pytest.mark.slow
def test_an_objective_that_needs_the_update_waits_for_it():
    train = run(OBJECTIVES["reinforce_pp"])
    groups = make_groups()
    learner = fresh_learner(train)
    learner.accumulate(groups[:2], 0)
    learner.accumulate(groups[2:], 0)
    with pytest.raises(ValueError, match="at most 4 groups, got 5"):
        learner.accumulate(groups[:1], 0)
    one = update_once(train, [groups])
    assert_near(one, update_once(train, [groups[:1], groups[1:]]))


def test_mismatch_is_measured_between_equal_versions_only():
    learner = fresh_learner(run())
    groups = [make_group(p, version=p % 2) for p in range(NUM_GROUPS)]
    learner.begin_round(1)
    learner.accumulate(groups, 0)
    first = learner.step(0)
    odd, _ = update_once(run(), [[make_group(p) for p in (1, 3)]])
    for name in ("logprob_abs_mean", "logprob_abs_max", "weight_mean"):
        assert first[f"mismatch/{name}"] == pytest.approx(odd[f"mismatch/{name}"])
    learner.accumulate(groups, 1)
    assert "mismatch/weight_mean" not in learner.step(1)


@pytest.mark.slow
def test_a_recomputed_old_policy_is_that_of_the_round():
    train = run(OBJECTIVES["recompute"])
    learner = fresh_learner(train)
    learner.accumulate(make_groups(), 0)
    first = learner.step(0)
    assert first["policy/clip_fraction_high"] == 0
    assert first["policy/clip_fraction_low"] == 0
    learner.accumulate(make_groups(), 1)
    second = learner.step(1)
    assert second["policy/clip_fraction_high"] > 0
    # The frozen weights still are the version's, so the mismatch is the same.
    for name in ("logprob_abs_mean", "weight_mean"):
        key = f"mismatch/{name}"
        assert second[key] == pytest.approx(first[key], rel=1e-5)


def test_a_round_resumed_in_the_middle_goes_on_with_its_frozen_weights():
    train = run(OBJECTIVES["recompute"])
    learner = fresh_learner(train)
    published = learner.export_params()
    learner.accumulate(make_groups(), 0)
    learner.step(0)
    saved = jax.device_get(learner.state())
    learner.accumulate(make_groups(), 1)
    expected = learner.step(1), jax.device_get(learner.params)
    other = fresh_learner(train)
    other.load_state(saved)
    other.begin_round(0, round_params=published)
    other.accumulate(make_groups(), 1)
    assert (other.step(1), jax.device_get(other.params))[0] == expected[0]
    assert_same(jax.device_get(other.params), expected[1])


def test_what_samplers_hold_is_never_changed():
    learner = fresh_learner(run())
    held = learner.export_params()
    before = jax.device_get(held)
    for update in range(2):
        learner.accumulate(make_groups(), update)
        learner.step(update)
    assert_same(jax.device_get(held), before)
    now = jax.device_get(learner.export_params())
    assert all(
        np.any(a != b)
        for a, b in zip(jax.tree.leaves(now), jax.tree.leaves(before), strict=True)
    )


def test_the_learning_rate_follows_updates_whatever_is_accumulated():
    train = run()
    learner = fresh_learner(train)
    rates = []
    for update in range(5):
        for group in make_groups(update):
            learner.accumulate([group], update)
        rates.append(learner.step(update)["optim/lr"])
    np.testing.assert_allclose(rates, 100 * (1 - np.arange(5) / 9))


PAIRS = [((1, 2, 3), (4, 5, 0)), ((6,), (7, 0)), ((1, 2), (9, 9, 9, 0))]


@pytest.mark.slow
def test_warm_up_is_the_mean_negative_log_likelihood_of_solutions():
    train = run()
    learner = fresh_learner(train)
    kept = [sequences.from_pair(*pair) for pair in PAIRS]
    tokens, segments, mask, _ = unpacked(kept)
    logprobs, _ = naive_logprobs(train, learner.params, tokens, segments, 1.0)
    total = -float(jnp.sum(jnp.where(mask, logprobs, 0)))
    losses = [learner.warm_up_step(PAIRS) for _ in range(3)]
    assert losses[0] == pytest.approx(total / 9, rel=1e-5)
    assert losses == sorted(losses, reverse=True)


def test_warm_up_leaves_fresh_moments_and_its_policy_as_reference():
    learner = fresh_learner(run(OBJECTIVES["kl_reward"]))
    moments = jax.device_get(learner.state()["opt_state"])
    learner.warm_up_step(PAIRS)
    learner.end_warm_up()
    state = jax.device_get(learner.state())
    assert_same(state["opt_state"], moments)
    assert_same(state["reference_params"], state["params"])


def test_a_given_reference_stays():
    given = first_params(9)
    learner = make_learner(run(OBJECTIVES["kl_reward"]), reference_params=given)
    learner.end_warm_up()
    assert_same(jax.device_get(learner.state()["reference_params"]), given)


def rewards_for_log():
    """Two groups; of the second, the third reward is missing."""
    return [
        make_group(0, rewards=[1.0, 0.0, 0.5]),
        make_group(1, rewards=[2.0, 1.0, None]),
    ]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        # Centred rewards are 0.5, -0.5, 0 with std 0.5, and 0.5, -0.5 with 0.5 ** 0.5.
        ("grpo", [1.0, -1.0, 0.0], [0.5**0.5, -(0.5**0.5), 0.0]),
        pytest.param(
            "rloo", [0.75, -0.75, 0.0], [1.0, -1.0, 0.0], marks=pytest.mark.slow
        ),
        # One std of all five: 4 squares of 0.25 over 5 - 1.
        pytest.param(
            "reinforce_pp", [1.0, -1.0, 0.0], [1.0, -1.0, 0.0], marks=pytest.mark.slow
        ),
    ],
)
def test_the_advantages_that_trained_can_be_taken_once(kind, first, second):
    learner = fresh_learner(
        run(dataclasses.replace(OBJECTIVES["grpo"], advantage=kind))
    )
    one, two = rewards_for_log()
    # In two hand-offs, the later group first.
    learner.accumulate([two], 0)
    learner.accumulate([one], 0)
    learner.step(0)
    taken = learner.take_advantages()
    np.testing.assert_allclose(taken[one.id], first, rtol=0, atol=1e-5)
    np.testing.assert_allclose(taken[two.id], second, rtol=0, atol=1e-5)
    assert learner.take_advantages() == {}


@pytest.mark.slow
def test_advantages_have_the_kl_and_the_length_taken_off():
    shaped = dataclasses.replace(
        OBJECTIVES["kl_reward"],
        advantage="dr_grpo",
        overlong_buffer=11,
        overlong_penalty=11.0,
    )
    learner = fresh_learner(run(shaped))
    group = make_group(3, rewards=[1.0, 1.0, 1.0])
    learner.accumulate([group], 0)
    kept = sequences.trajectories([group], mask_truncated=False)
    tokens, segments, mask_GM, sampler_GM = unpacked(kept)
    reference_GM, _ = naive_logprobs(run(shaped), learner.params, tokens, segments)
    learner.step(0)
    kl_G = np.sum(np.where(mask_GM, sampler_GM - reference_GM, 0), axis=1)
    # From the second token on, each costs 1 of these 11; KL has the coefficient 0.5.
    lengths_G = np.array([sample.num_sampled for sample in group.samples])
    rewards_G = 1.0 - 0.5 * kl_G - (lengths_G - 1)
    expected = rewards_G - rewards_G.mean()
    assert np.abs(expected).max() > 0.5
    taken = learner.take_advantages()[group.id]
    np.testing.assert_allclose(taken, expected, rtol=0, atol=1e-5)


def test_nothing_compiles_after_compile():
    pipeline = Pipeline(groups_per_round=8, groups_per_update=4, samples_per_group=3)
    train = run(OBJECTIVES["kl_reward"], pipeline=pipeline, row_shapes=2)
    learner = make_learner(train)
    learner.compile()
    learner.begin_round(0)
    programs, counter = learner.compilations, CompilationCounter()
    for update in range(3):
        learner.accumulate(make_groups(3), update)
        learner.accumulate([make_group(4)], update)
        learner.step(update)
    assert learner.compilations == programs
    assert counter.count == 0


def test_running_every_shape_on_nothing_leaves_no_sums():
    learner = fresh_learner(run())
    rows = learner.accumulate(make_groups(), 0)
    expected, _ = learner.take_sums()
    learner.run_shapes()
    sums, num_trained = learner.take_sums()
    assert num_trained == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(sums))
    # What is added behind it is added to nothing.
    assert learner.accumulate(make_groups(), 0) == rows
    assert_same(learner.take_sums()[0], expected)
    assert sum(rows) > 0


@pytest.mark.parametrize("name", ["kl_reward", "grpo"])
def test_a_restored_learner_goes_on_bit_for_bit(name):
    train = run(OBJECTIVES[name])
    learner = fresh_learner(train)
    learner.accumulate(make_groups(), 0)
    learner.step(0)
    saved = jax.device_get(learner.state())
    learner.accumulate(make_groups(), 1)
    learner.step(1)
    expected = jax.device_get(learner.state())
    other = fresh_learner(train)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), other.abstract_state())
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), saved)
    # Sums of groups that no update took are dropped.
    other.accumulate(make_groups(1), 0)
    other.load_state(saved)
    other.accumulate(make_groups(), 1)
    other.step(1)
    assert_same(jax.device_get(other.state()), expected)


@pytest.mark.slow
def test_a_state_of_eight_devices_goes_on_with_one():
    sharded = run(mesh=Mesh(data=2, fsdp=2, tensor=2, shared=True))
    learner = fresh_learner(sharded)
    learner.accumulate(make_groups(), 0)
    learner.step(0)
    saved = jax.device_get(learner.state())
    learner.accumulate(make_groups(), 1)
    learner.step(1)
    one = fresh_learner(run())
    one.load_state(saved)
    one.accumulate(make_groups(), 1)
    one.step(1)
    assert_near(jax.device_get(one.params), jax.device_get(learner.params), atol=1e-5)
