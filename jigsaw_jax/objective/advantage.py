"""Advantages of completions relative to the others of their group."""

import jax.numpy as jnp

from jigsaw_jax.types import Array, Float

# Added to a standard deviation before it divides, as public GRPO trainers do.
EPSILON = 1e-6


def advantages(kind: str, rewards_PG: Float[Array, "P G"]) -> Float[Array, "P G"]:
    """The advantage of each completion; `kind` is that of `settings.Objective`.

    A reward that is not finite is missing: it leaves its group's baseline and its own
    advantage is 0 (the caller also gives that completion no weight). A group whose
    rewards are all equal, or that has only one, gets exactly 0.

    With r the group's rewards, n of them:
      grpo: (r - mean(r)) / (std(r) + 1e-6), std with n - 1.
      dr_grpo: r - mean(r).
      rloo: r - mean of the n - 1 others.
      reinforce_pp: (r - mean(r)) / (std + 1e-6) with the std of all of the update's
        r - mean(r), N of them, with N - 1.

    Source: DeepSeekMath (grpo), Understanding R1-Zero-Like Training (dr_grpo), Back
    to Basics (rloo), REINFORCE++ section "with baseline" (reinforce_pp).
    """
    centred_PG, count_PG = _centre(rewards_PG)
    if kind == "dr_grpo":
        return centred_PG
    if kind == "rloo":
        return centred_PG * count_PG / jnp.maximum(count_PG - 1, 1)
    squares_PG = jnp.square(centred_PG)
    if kind == "grpo":
        freedom_PG = jnp.maximum(count_PG - 1, 1)
        variance_PG = jnp.sum(squares_PG, axis=1, keepdims=True) / freedom_PG
        return centred_PG / (jnp.sqrt(variance_PG) + EPSILON)
    assert kind == "reinforce_pp", kind
    num_present = jnp.sum(jnp.isfinite(rewards_PG)).astype(squares_PG.dtype)
    variance = jnp.sum(squares_PG) / jnp.maximum(num_present - 1, 1)
    return centred_PG / (jnp.sqrt(variance) + EPSILON)


def _centre(
    rewards_PG: Float[Array, "P G"],
) -> tuple[Float[Array, "P G"], Float[Array, "P G"]]:
    """Rewards minus their group's mean (0 where missing), and how many are present.

    The group's least reward is taken off first. So equal rewards come out exactly 0,
    which a rounded mean would miss, and the mean of close rewards loses no digits.
    """
    is_present_PG = jnp.isfinite(rewards_PG)
    least_PG = jnp.min(
        jnp.where(is_present_PG, rewards_PG, jnp.inf), axis=1, keepdims=True
    )
    shifted_PG = jnp.where(is_present_PG, rewards_PG - least_PG, 0)
    count_PG = jnp.sum(
        is_present_PG, axis=1, keepdims=True, dtype=rewards_PG.dtype
    ) + jnp.zeros_like(rewards_PG)
    total_PG = jnp.sum(shifted_PG, axis=1, keepdims=True)
    mean_PG = total_PG / jnp.maximum(count_PG, 1)
    return jnp.where(is_present_PG, shifted_PG - mean_PG, 0), count_PG
