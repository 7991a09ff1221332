"""Grouped-query attention over explicit masks, with float32 scores."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jigsaw_jax.types import Array, Bool, Float, Int


def packed_mask(
    segment_ids_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    window: int | None,
    prefix_ids_BT: Int[Array, "B T"] | None = None,
) -> Bool[Array, "B T T"]:
    """Which key (last dim) each query may see: causal, within one segment.

    Every token sees itself, padding (segment 0) included, so that no row is empty.
    `window` is how many tokens back a local layer sees, itself included. A query also
    sees the segment that `prefix_ids_BT` names, whose tokens lie before it in the row:
    the prompt that its segment goes on from.
    """
    length = segment_ids_BT.shape[1]
    order = jnp.arange(length)
    mask = (order[:, None] >= order[None, :])[None]
    keys = segment_ids_BT[:, None, :]
    is_seen = segment_ids_BT[:, :, None] == keys
    if prefix_ids_BT is not None:
        is_seen = is_seen | (prefix_ids_BT[:, :, None] == keys)
    mask = mask & is_seen
    if window is not None:
        distance = positions_BT[:, :, None] - positions_BT[:, None, :]
        mask = mask & (distance < window)
    return mask


class KeysValues(NamedTuple):
    """Keys and values of one layer as a cache holds them."""

    k_BKHS: Float[Array, "B K H S"]
    v_BKSH: Float[Array, "B K S H"]


def as_cached(
    k_BSKH: Float[Array, "B S K H"], v_BSKH: Float[Array, "B S K H"]
) -> KeysValues:
    """The dims of fresh keys and values in the order that `attend` reads."""
    return KeysValues(k_BSKH.transpose(0, 2, 3, 1), v_BSKH.transpose(0, 2, 1, 3))


def attend(
    q_BTNH: Float[Array, "B T N H"],
    k_BKHS: Float[Array, "B K H S"],
    v_BKSH: Float[Array, "B K S H"],
    mask_BTS: Bool[Array, "B T S"],
    *,
    precision: jax.lax.Precision,
    scale: float,
    soft_cap: float | None = None,
) -> Float[Array, "B T N H"]:
    """Softmax attention; query heads of one group share a key-value head.

    Scores are multiplied by `scale`, then bent to stay within `soft_cap`.

    Keys lie as `K H S` and values as `K S H`, and the queries of a group (its heads
    and positions) are the rows of one small matrix. XLA's CPU backend runs both
    products of a decode step four times as fast as in the usual order. A group's heads
    stand before its positions: so the mask's last two dims are those of the scores,
    and a TPU needs no copy of it for each head.
    """
    b, t, n, h = q_BTNH.shape
    k = k_BKHS.shape[1]
    grouped = q_BTNH.reshape(b, t, k, n // k, h).transpose(0, 2, 3, 1, 4)
    scores = jnp.einsum(
        "BKQTH,BKHS->BKQTS",
        grouped,
        k_BKHS,
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    scores = scores * scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    scores = jnp.where(mask_BTS[:, None, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v_BKSH.dtype)
    out = jnp.einsum("BKQTS,BKSH->BKQTH", weights, v_BKSH, precision=precision)
    return out.transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)
