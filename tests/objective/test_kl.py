"""KL estimators against exact KL of small softmax policies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.objective.kl import kl_loss, kl_value

LOGITS_V = jnp.array([0.3, -1.5, 0.9])
REFERENCE_V = jnp.log(jnp.array([0.5, 0.2, 0.3]))


def exact_kl(logits_V, reversed_=False):
    logp_V = jax.nn.log_softmax(logits_V)
    one, two = (REFERENCE_V, logp_V) if reversed_ else (logp_V, REFERENCE_V)
    return jnp.sum(jnp.exp(one) * (one - two))


def expected(function, kind, logits_V):
    """Mean over the policy's tokens, whose probabilities are not differentiated."""
    logp_V = jax.nn.log_softmax(logits_V)
    value_V = function(kind, (logp_V - REFERENCE_V)[None])[0]
    return jnp.sum(jax.lax.stop_gradient(jnp.exp(logp_V)) * value_V)


def test_hand_worked_values():
    d_RM = jnp.log(jnp.array([[2.0]]))
    assert kl_value("k1", d_RM)[0, 0] == pytest.approx(0.693147, abs=1e-6)
    assert kl_value("k2", d_RM)[0, 0] == pytest.approx(0.240227, abs=1e-6)
    assert kl_value("k3", d_RM)[0, 0] == pytest.approx(0.193147, abs=1e-6)


def test_k3_of_a_small_difference_keeps_its_digits():
    # d^2 / 2 = 5e-9 to first order; exp(-d) - 1 + d would round to 0 or 1e-7.
    assert kl_value("k3", jnp.array([[1e-4]]))[0, 0] == pytest.approx(5e-9, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "is_unbiased"), [("k1", True), ("k2", False), ("k3", True)]
)
def test_which_values_are_unbiased(kind, is_unbiased):
    gap = abs(expected(kl_value, kind, LOGITS_V) - exact_kl(LOGITS_V))
    assert bool(gap < 1e-6) == is_unbiased
    assert float(expected(kl_loss, kind, LOGITS_V)) == pytest.approx(
        float(expected(kl_value, kind, LOGITS_V)), abs=1e-6
    )


@pytest.mark.parametrize("kind", ["k1", "k2"])
def test_the_loss_of_k1_and_k2_has_the_unbiased_gradient(kind):
    gradient_V = jax.grad(lambda x: expected(kl_loss, kind, x))(LOGITS_V)
    np.testing.assert_allclose(gradient_V, jax.grad(exact_kl)(LOGITS_V), atol=1e-6)
    assert np.max(np.abs(gradient_V)) > 0.1


def test_the_loss_of_k3_has_the_gradient_of_the_reversed_kl():
    gradient_V = jax.grad(lambda x: expected(kl_loss, "k3", x))(LOGITS_V)
    reversed_V = jax.grad(lambda x: exact_kl(x, reversed_=True))(LOGITS_V)
    np.testing.assert_allclose(gradient_V, reversed_V, atol=1e-6)
    assert np.max(np.abs(gradient_V - jax.grad(exact_kl)(LOGITS_V))) > 0.01


def test_the_plain_gradient_of_k1_would_be_zero():
    gradient_V = jax.grad(lambda x: expected(kl_value, "k1", x))(LOGITS_V)
    np.testing.assert_allclose(gradient_V, np.zeros(3), atol=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_one_step_down_the_loss_brings_the_policy_closer(kind):
    gradient_V = jax.grad(lambda x: expected(kl_loss, kind, x))(LOGITS_V)
    assert exact_kl(LOGITS_V - 0.1 * gradient_V) < exact_kl(LOGITS_V)


def test_k1_in_the_reward_has_the_unbiased_gradient():
    def score_function(logits_V):
        logp_V = jax.nn.log_softmax(logits_V)
        probability_V = jax.lax.stop_gradient(jnp.exp(logp_V))
        penalty_V = jax.lax.stop_gradient(
            kl_value("k1", (logp_V - REFERENCE_V)[None])[0]
        )
        return jnp.sum(probability_V * penalty_V * logp_V)

    np.testing.assert_allclose(
        jax.grad(score_function)(LOGITS_V), jax.grad(exact_kl)(LOGITS_V), atol=1e-6
    )
