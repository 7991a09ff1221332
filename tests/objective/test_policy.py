"""The composed objective against a float64 double, and its invariances."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.objective import policy
from jigsaw_jax.settings import Objective
from tests.objective import double

NORM_TOKENS = 10
FIELDS = [f.name for f in dataclasses.fields(policy.Tokens)]
FLOATS = [name for name in FIELDS if name not in ("sequence_ids_RM", "mask_RM")]
# Row 0 holds sequences of 4 and 1 tokens, row 1 one of 3, row 2 none.
IDS_RM = np.array([[1, 1, 1, 1, 2, 9, 9], [5, 5, 5, 5, 5, 5, 5], [0] * 7])
MASK_RM = np.array([[1, 1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0, 0], [0] * 7], bool)


def random_tokens(seed=0):
    rng = np.random.default_rng(seed)
    logprobs_RM = -np.abs(rng.normal(size=(3, 7))) - 0.1
    near = functools.partial(rng.normal, scale=0.4, size=(3, 7))
    values = {
        "logprobs_RM": logprobs_RM,
        "entropies_RM": np.abs(near()),
        "old_logprobs_RM": logprobs_RM + near(),
        "sampler_logprobs_RM": logprobs_RM + near(),
        "reference_logprobs_RM": logprobs_RM + near(),
        "advantages_RM": near() * 3,
    }
    floats = {name: jnp.asarray(x, jnp.float32) for name, x in values.items()}
    return policy.Tokens(
        **floats, sequence_ids_RM=jnp.asarray(IDS_RM), mask_RM=jnp.asarray(MASK_RM)
    )


@functools.partial(jax.jit, static_argnums=0)
def run(objective, tokens):
    """Loss, weight, sums, and gradients by logprobs and entropies."""

    def loss(logprobs_RM, entropies_RM):
        now = dataclasses.replace(
            tokens, logprobs_RM=logprobs_RM, entropies_RM=entropies_RM
        )
        total, weight, sums = policy.policy_loss(
            objective, now, norm_tokens=NORM_TOKENS
        )
        return total, (weight, sums)

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        tokens.logprobs_RM, tokens.entropies_RM
    )


AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
)
KLS = (None, "k1", "k2", "k3")


def objectives():
    """Every combination; the quick ones hold every pair of choices."""
    kinds = itertools.product(("token", "sequence"), ("ppo", "cispo"))
    for k, (ratio, surrogate) in enumerate(kinds):
        for (i, kl), (j, aggregation) in itertools.product(
            enumerate(KLS), enumerate(AGGREGATIONS)
        ):
            objective = Objective(
                ratio=ratio,
                surrogate=surrogate,
                kl=kl,
                kl_coefficient=0.3 if kl else 0.0,
                aggregation=aggregation,
                clip_high=0.3,
            )
            is_quick = (i + k) % 4 == j
            yield pytest.param(objective, marks=() if is_quick else pytest.mark.slow)
    extra = functools.partial(Objective, old_policy="recompute")
    yield extra(mismatch="truncate", mismatch_max=1.2)
    yield extra(mismatch="mask", mismatch_max=1.2, ratio="sequence")
    yield Objective(dual_clip=1.3)
    yield Objective(entropy_coefficient=0.1)
    yield Objective(surrogate="cispo", clip_low=1.0, clip_high=4.0)


def name_of(objective):
    plain = Objective()
    return "-".join(
        str(getattr(objective, f.name))
        for f in dataclasses.fields(objective)
        if getattr(objective, f.name) != getattr(plain, f.name)
    )


EVERY_OBJECTIVE = pytest.mark.parametrize("objective", list(objectives()), ids=name_of)


@EVERY_OBJECTIVE
def test_loss_weight_metrics_and_gradient_agree_with_float64(objective):
    tokens = random_tokens()
    (total, (weight, sums)), (gradient_RM, entropy_gradient_RM) = run(objective, tokens)
    exact = functools.partial(
        double.policy_loss, objective, tokens, norm_tokens=NORM_TOKENS
    )
    exact_total, exact_weight, exact_sums = exact()
    # Sums of eight numbers of order 1 in float32.
    assert float(total) == pytest.approx(exact_total, abs=3e-6)
    assert weight == exact_weight
    for name, value in sums.items():
        assert float(value) == pytest.approx(exact_sums[name], abs=3e-6), name
    logprobs_RM = np.asarray(tokens.logprobs_RM, np.float64)
    for place in np.ndindex(*logprobs_RM.shape):
        step_RM = np.zeros_like(logprobs_RM)
        step_RM[place] = 1e-6
        slope = exact(moving=logprobs_RM + step_RM)[0]
        slope = (slope - exact(moving=logprobs_RM - step_RM)[0]) / 2e-6
        assert float(gradient_RM[place]) == pytest.approx(slope, abs=3e-6)
    expected_RM = np.zeros_like(logprobs_RM)
    if objective.entropy_coefficient:
        expected_RM[MASK_RM] = -objective.entropy_coefficient
    np.testing.assert_allclose(entropy_gradient_RM, expected_RM, rtol=1e-6)


@EVERY_OBJECTIVE
@pytest.mark.parametrize("poison", ["random", np.nan, np.inf, -np.inf, 800.0])
def test_what_stands_under_the_mask_changes_nothing(objective, poison):
    tokens = random_tokens()
    other = random_tokens(seed=7)

    def spoil(name):
        bad = getattr(other, name) if poison == "random" else jnp.float32(poison)
        return jnp.where(MASK_RM, getattr(tokens, name), bad)

    spoilt = {name: spoil(name) for name in FLOATS}
    ids_RM = jnp.where(MASK_RM, tokens.sequence_ids_RM, jnp.array(-3))
    before = run(objective, tokens)
    after = run(
        objective,
        policy.Tokens(**spoilt, sequence_ids_RM=ids_RM, mask_RM=tokens.mask_RM),
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(before))


@EVERY_OBJECTIVE
def test_rows_can_be_split_and_shuffled(objective):
    tokens = random_tokens()
    whole = run(objective, tokens)
    order = [1, 2, 0]
    shuffled = jax.tree.map(lambda x: x[jnp.array(order)], tokens)
    only = jnp.eye(3, dtype=bool)[:, :, None]
    parts = [
        run(objective, dataclasses.replace(shuffled, mask_RM=shuffled.mask_RM & own))
        for own in only
    ]
    summed = jax.tree.map(lambda *x: sum(x), *parts)
    back = jnp.argsort(jnp.array(order))
    summed = (summed[0], jax.tree.map(lambda x_RM: x_RM[back], summed[1]))
    # The same few numbers in another order of addition.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), whole, summed
    )


def one_row(**values):
    """Tokens of one row whose arrays not given are 0 (advantages 1)."""
    width = len(next(iter(values.values())))
    rows = {name: jnp.zeros((1, width)) for name in FLOATS}
    rows |= {"advantages_RM": jnp.ones((1, width))}
    rows |= {"sequence_ids_RM": jnp.ones((1, width), int)}
    rows |= {"mask_RM": jnp.ones((1, width), bool)}
    rows |= {name: jnp.asarray([value]) for name, value in values.items()}
    return policy.Tokens(**rows)


def test_cispo_weights_ratios_of_a_half_and_ten_by_a_half_and_five():
    objective = Objective(surrogate="cispo", clip_low=1.0, clip_high=4.0)
    tokens = one_row(logprobs_RM=np.log([0.5, 10.0]), advantages_RM=[2.0, -1.0])
    _, (gradient_RM, _) = run(objective, tokens)
    np.testing.assert_allclose(gradient_RM, [[-0.5 * 2, 5.0]], rtol=1e-6)


def test_the_ratio_compares_with_the_old_policy_and_clips():
    tokens = one_row(
        logprobs_RM=np.log([1.5, 0.5, 1.5, 0.5]), advantages_RM=[1.0, 1.0, -1.0, -1.0]
    )
    (total, (_, sums)), (gradient_RM, _) = run(Objective(), tokens)
    # Clipped: 1.5 with A > 0 at 1.2, and 0.5 with A < 0 at 0.8.
    assert float(total) == pytest.approx(-1.2 - 0.5 + 1.5 + 0.8)
    np.testing.assert_allclose(gradient_RM, [[0, -0.5, 1.5, 0]], rtol=1e-6)
    assert (sums["clip_low"], sums["clip_high"]) == (1, 1)


def test_equal_policies_have_ratio_one_and_no_clipping():
    tokens = dataclasses.replace(
        random_tokens(), old_logprobs_RM=random_tokens().logprobs_RM
    )
    for ratio in ("token", "sequence"):
        objective = Objective(ratio=ratio, clip_low=0.0, clip_high=0.0)
        (total, (_, sums)), (gradient_RM, _) = run(objective, tokens)
        expected_RM = np.where(MASK_RM, -np.asarray(tokens.advantages_RM), 0)
        assert float(total) == pytest.approx(expected_RM.sum(), rel=1e-6)
        np.testing.assert_array_equal(gradient_RM, expected_RM)
        assert (sums["clip_low"], sums["clip_high"]) == (0, 0)


def test_the_sequence_ratio_is_the_geometric_mean_of_its_trained_tokens():
    tokens = one_row(
        logprobs_RM=np.log([1.1, 1.2, 9.0, 1.3]),
        sequence_ids_RM=np.array([1, 1, 1, 2]),
        mask_RM=np.array([True, True, False, True]),
    )
    objective = Objective(ratio="sequence", clip_high=1.0)
    (total, _), _ = run(objective, tokens)
    assert float(total) == pytest.approx(-2 * np.sqrt(1.1 * 1.2) - 1.3)


@pytest.mark.parametrize(
    ("aggregation", "total", "weight"),
    [
        ("token-mean", 4.0 + 5.0, 5),
        ("seq-mean-token-mean", 1.0 + 5.0, 2),
        ("seq-mean-token-sum", 4.0 + 5.0, 2),
        ("seq-mean-token-sum-norm", 0.9, 2),
    ],
)
def test_aggregations_of_rows_with_one_four_and_no_tokens(aggregation, total, weight):
    # Ratio 1, so a token's loss is -A: 1 on four tokens, 5 on one, 100 masked.
    tokens = policy.Tokens(
        **{name: jnp.zeros((3, 4)) for name in FLOATS if name != "advantages_RM"},
        advantages_RM=-jnp.array([[1.0] * 4, [5, 100, 100, 100], [100.0] * 4]),
        sequence_ids_RM=jnp.ones((3, 4), int),
        mask_RM=jnp.array([[True] * 4, [True] + [False] * 3, [False] * 4]),
    )
    (got, (got_weight, _)), _ = run(Objective(aggregation=aggregation), tokens)
    assert (float(got), got_weight) == (pytest.approx(total), weight)


def test_the_kl_of_the_loss_moves_a_policy_without_advantages():
    objective = Objective(kl="k3", kl_coefficient=1.0)
    tokens = one_row(
        logprobs_RM=np.log([0.5]),
        advantages_RM=[0.0],
        reference_logprobs_RM=np.log([0.25]),
        old_logprobs_RM=np.log([0.5]),
    )
    _, (gradient_RM, _) = run(objective, tokens)
    np.testing.assert_allclose(gradient_RM, [[0.5]], rtol=1e-6)


def test_the_kl_of_the_reward_counts_trained_tokens_only():
    objective = Objective(kl="k1", kl_coefficient=2.0, kl_placement="reward")
    old_RM, reference_RM = jnp.array([[-1.0, -50.0]]), jnp.array([[-1.5, 900.0]])
    got_RM = policy.reward_kl(
        objective, old_RM, reference_RM, mask_RM=jnp.array([[True, False]])
    )
    np.testing.assert_allclose(got_RM, [[1.0, 0.0]])


def test_a_huge_log_ratio_with_no_advantage_is_no_nan():
    tokens = one_row(logprobs_RM=[500.0], advantages_RM=[0.0])
    result = run(Objective(), tokens)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result))
