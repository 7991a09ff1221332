"""Soft penalty on completions that come close to the cap."""

import jax.numpy as jnp

from jigsaw_jax.types import Array, Float, Int


def overlong_reward(
    lengths_PG: Int[Array, "P G"], cap: int, *, buffer: int, penalty: float
) -> Float[Array, "P G"]:
    """What to add to the reward: 0 up to cap - buffer, then linear to -penalty.

    Args:
      lengths_PG: sampled tokens of each completion; the prompt does not count.
      cap: most tokens that a completion can have.
      buffer: tokens before the cap over which the penalty grows; 0 is no penalty.
      penalty: at the cap.

    Returns:
      Numbers of at most 0.

    Source: DAPO, section 3.4.
    """
    if not buffer:
        return jnp.zeros(lengths_PG.shape, jnp.float32)
    over_PG = jnp.clip(lengths_PG - (cap - buffer), 0, buffer)
    return over_PG.astype(jnp.float32) * (-penalty / buffer)
