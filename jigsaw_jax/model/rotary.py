"""Rotary position embedding, rotate-half convention."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax import mesh as meshes
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Float, Int


class Turn(NamedTuple):
    """Cosine and sine of every position's angles, H/2 of them, in float32."""

    cos: Array
    sin: Array


def turn(positions_BT: Int[Array, "B T"], rates: np.ndarray) -> Turn:
    """The angles `position * rate` of `rates`, H/2 of them."""
    angles = (
        positions_BT.astype(jnp.float32)[..., None] * jnp.asarray(rates)[None, None]
    )
    return Turn(jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None])


def rates(decoder: Decoder, *, is_global: bool) -> np.ndarray:
    """Angle a position of each pair of a head, H/2 float32 constants.

    They are `base ** (-2i / H)`, i from 0 to H/2 - 1, then scaled in global layers.
    The powers are taken on the host in float32, as the reference implementations do: a
    last bit more or less is 1e-5 of a turn at position 1000.

    Source: Su et al. 2021, RoFormer, section 3.4.2; "llama3": Llama 3.1's
    reference code, `apply_scaling`.
    """
    exponent = np.arange(0, decoder.head_dim, 2, dtype=np.float32) / np.float32(
        decoder.head_dim
    )
    base = decoder.rope_base if is_global else decoder.rope_local_base
    fast = np.float32(1) / np.float32(base) ** exponent
    if not is_global or decoder.rope_scaling == "none":
        return fast
    slow = fast / np.float32(decoder.rope_factor)
    if decoder.rope_scaling == "linear":
        return slow
    low, high = decoder.rope_low_freq_factor, decoder.rope_high_freq_factor
    turns = decoder.rope_original_length * fast.astype(np.float64) / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
    return (1 - kept) * slow + kept * fast


def rotate(heads_BTNH: Float[Array, "B T N H"], turn: Turn) -> Float[Array, "B T N H"]:
    """Turns the pair (i, i + H/2) of every head by the angle of its position."""
    if meshes.platform() == "tpu":
        return _rotate_whole(heads_BTNH, turn)
    low, high = jnp.split(heads_BTNH.astype(jnp.float32), 2, axis=-1)
    turned = (low * turn.cos - high * turn.sin, high * turn.cos + low * turn.sin)
    return jnp.concatenate(turned, axis=-1).astype(heads_BTNH.dtype)


def _rotate_whole(
    heads_BTNH: Float[Array, "B T N H"], turn: Turn
) -> Float[Array, "B T N H"]:
    """The same, with the halves swapped by a matrix of zeros and ones.

    A half head leaves half of a TPU's lanes idle and its pieces go through memory: by
    the compiler's cycles the matrix, whose products are exact, takes 0.6 of the time.
    """
    half = heads_BTNH.shape[-1] // 2
    swap_HH = np.zeros((2 * half, 2 * half), np.float32)
    swap_HH[np.arange(half) + half, np.arange(half)] = -1
    swap_HH[np.arange(half), np.arange(half) + half] = 1
    swapped = jnp.einsum(
        "BTNH,HJ->BTNJ",
        heads_BTNH,
        jnp.asarray(swap_HH, heads_BTNH.dtype),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    cos, sin = (jnp.concatenate((x, x), axis=-1) for x in turn)
    turned = heads_BTNH.astype(jnp.float32) * cos + swapped * sin
    return turned.astype(heads_BTNH.dtype)
