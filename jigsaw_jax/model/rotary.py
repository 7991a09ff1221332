"""Rotary position embedding, rotate-half convention."""

from typing import NamedTuple

import jax.numpy as jnp

from jigsaw_jax.types import Array, Float, Int


class Turn(NamedTuple):
    """Cosine and sine of every position's angles, H/2 of them, in float32."""

    cos: Array
    sin: Array


def turn(positions_BT: Int[Array, "B T"], head_dim: int, base: float) -> Turn:
    """Angles `position * base ** (-2i / H)`, i from 0 to H/2 - 1.

    Source: Su et al. 2021, RoFormer, section 3.4.2.
    """
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    rate = jnp.float32(base) ** -exponent
    angles = positions_BT.astype(jnp.float32)[..., None] * rate[None, None]
    return Turn(jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None])


def rotate(heads_BTNH: Float[Array, "B T N H"], turn: Turn) -> Float[Array, "B T N H"]:
    """Turns the pair (i, i + H/2) of every head by the angle of its position."""
    low, high = jnp.split(heads_BTNH.astype(jnp.float32), 2, axis=-1)
    turned = (low * turn.cos - high * turn.sin, high * turn.cos + low * turn.sin)
    return jnp.concatenate(turned, axis=-1).astype(heads_BTNH.dtype)
