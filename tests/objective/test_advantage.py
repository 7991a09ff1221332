"""Advantages: hand-worked numbers, a naive double, and the faults trainers shipped."""

import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.objective.advantage import advantages

KINDS = ("grpo", "dr_grpo", "rloo", "reinforce_pp")
NAN = float("nan")


def rows(*groups):
    return jnp.array(groups, jnp.float32)


def double(kind, rewards_PG):
    """Group by group in float64; NaN is missing."""
    rewards_PG = np.asarray(rewards_PG, np.float64)
    result = np.zeros_like(rewards_PG)
    for p, group in enumerate(rewards_PG):
        present = [g for g, r in enumerate(group) if np.isfinite(r)]
        for g in present:
            others = [group[i] for i in present if kind != "rloo" or i != g]
            base = np.mean(others) if others else group[g]
            result[p, g] = group[g] - base
        if kind == "grpo" and len(present) > 1:
            result[p] /= np.std(group[present], ddof=1) + 1e-6
    if kind == "reinforce_pp":
        num = np.isfinite(rewards_PG).sum()
        result /= np.sqrt((result**2).sum() / max(num - 1, 1)) + 1e-6
    return result


def test_one_table_of_hand_worked_numbers():
    rewards_PG = rows([0, 1], [0, 100])
    half, root = 0.5, np.sqrt(0.5)
    np.testing.assert_allclose(
        advantages("dr_grpo", rewards_PG), [[-half, half], [-50, 50]]
    )
    np.testing.assert_allclose(advantages("rloo", rewards_PG), [[-1, 1], [-100, 100]])
    # Group scaling: equal magnitudes; the epsilon of 1e-6 shows at 1.4e-6.
    np.testing.assert_allclose(
        advantages("grpo", rewards_PG), [[-root, root], [-root, root]], rtol=2e-6
    )
    # Update scaling: std = sqrt((2 * 0.25 + 2 * 2500) / 3), and 100 times apart.
    std = np.sqrt(5000.5 / 3)
    np.testing.assert_allclose(
        advantages("reinforce_pp", rewards_PG),
        np.array([[-half, half], [-50, 50]]) / std,
        rtol=1e-6,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward", [0.9, 2.1, 0.3, 0.1, 0.0, -7e5])
def test_equal_rewards_give_exactly_zero(kind, reward):
    assert not np.any(advantages(kind, jnp.full((3, 7), reward, jnp.float32)))


def test_close_rewards_keep_their_digits():
    rewards_PG = rows([1.0, 1.00001])
    exact = double("grpo", rewards_PG)
    assert exact[0, 1] == pytest.approx(0.62, abs=0.01)
    # The float32 inputs are exact, so only the arithmetic's own rounding is left.
    np.testing.assert_allclose(advantages("grpo", rewards_PG), exact, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_groups_agree_with_a_loop_in_float64(kind):
    rng = np.random.default_rng(0)
    rewards_PG = rng.choice([0.0, 0.1, 0.5, 1.0, 1.1], (1000, 6)).astype(np.float32)
    rewards_PG[rng.random(rewards_PG.shape) < 0.3] = NAN
    got_PG = advantages(kind, jnp.asarray(rewards_PG))
    assert np.isnan(rewards_PG).all(axis=1).any()
    # Differences of numbers up to 1 carry 1e-7; divided by a std of 0.05 or more.
    np.testing.assert_allclose(got_PG, double(kind, rewards_PG), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_groups_and_members_does_not_matter(kind):
    rng = np.random.default_rng(1)
    rewards_PG = rng.normal(size=(5, 4)).astype(np.float32)
    groups, members = rng.permutation(5), rng.permutation(4)
    plain_PG = np.asarray(advantages(kind, jnp.asarray(rewards_PG)))
    mixed_PG = advantages(kind, jnp.asarray(rewards_PG[groups][:, members]))
    np.testing.assert_allclose(mixed_PG, plain_PG[groups][:, members], atol=1e-6)


@pytest.mark.parametrize("missing", [NAN, float("inf")])
def test_a_missing_reward_leaves_the_baseline(missing):
    got_PG = advantages("dr_grpo", rows([missing, 1, 0, 1]))
    np.testing.assert_allclose(got_PG, [[0, 1 / 3, -2 / 3, 1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_with_one_reward_or_none_give_zero(kind):
    assert not np.any(advantages(kind, rows([NAN, 5, NAN], [NAN, NAN, NAN])))


def test_a_missing_reward_is_not_a_zero_reward():
    np.testing.assert_array_equal(advantages("rloo", rows([0.0, 1.0])), [[-1, 1]])
    assert not np.any(advantages("rloo", rows([NAN, 1.0])))


def test_an_outlier_in_the_first_place_counts_like_any_other():
    # Mean 0.75, std 0.5.
    np.testing.assert_allclose(
        advantages("grpo", rows([0, 1, 1, 1])), [[-1.5, 0.5, 0.5, 0.5]], rtol=1e-5
    )


def test_each_prompt_has_its_own_baseline():
    assert not np.any(advantages("dr_grpo", rows([1, 1], [0, 0])))
