"""Estimators of KL(policy || reference) from tokens that the policy drew.

With d = logp - ref_logp at a token drawn from the policy, and the gradient's mean:

| kind | value | value's bias | d value / d logp | mean gradient |
|---|---|---|---|---|
| k1 | d | none | 1 | 0: no use |
| k2 | d^2 / 2 | biased | d | that of KL(policy, ref) |
| k3 | exp(-d) - 1 + d | none | 1 - exp(-d) | that of KL(ref, policy) |

So k1 in the loss takes k2's gradient here (value and gradient are then both
unbiased), and k2 and k3 keep their own. In the reward an estimator is a constant and
what counts is its value: k1 gives the unbiased gradient, k2 and k3 a biased one.
All of it holds on policy; tokens of an older policy bias every one of them.

Source: Schulman, Approximating KL Divergence (2020); Tang and Munos, On a few
pitfalls in KL divergence gradient estimation for RL (2025).
"""

import jax
import jax.numpy as jnp

from jigsaw_jax.types import Array, Float


def kl_value(kind: str, difference_RM: Float[Array, "R M"]) -> Float[Array, "R M"]:
    """The estimator named `kind` ("k1", "k2" or "k3") of d = logp - ref_logp."""
    if kind == "k1":
        return difference_RM
    if kind == "k2":
        return jnp.square(difference_RM) / 2
    assert kind == "k3", kind
    # expm1 keeps the digits of a small d, of which k3 is about the square.
    return jnp.expm1(-difference_RM) + difference_RM


def kl_loss(kind: str, difference_RM: Float[Array, "R M"]) -> Float[Array, "R M"]:
    """The same value with the gradient that a loss needs: k2's where kind is k1."""
    value_RM = kl_value(kind, difference_RM)
    if kind != "k1":
        return value_RM
    through_RM = kl_value("k2", difference_RM)
    return jax.lax.stop_gradient(value_RM - through_RM) + through_RM
