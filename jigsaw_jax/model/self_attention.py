"""Attention of packed rows to themselves: one interface, two ways to compute it.

Training and prefill take it; decoding attends to a cache. `Decoder.attention` chooses:

    "auto"    the Pallas kernel on a TPU in bfloat16, einsums elsewhere
    "einsum"  scores in memory; exact in float32, any length
    "splash"  the kernel everywhere, interpreted off a TPU: for tests
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import attention, splash
from jigsaw_jax.model.layer import choose, score_options
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Int

# (layer index, q_BTNH, k_BTKH, v_BTKH) to the attention's output, B T N H.
Attend = Callable[[int | Array, Array, Array, Array], Array]


def of_rows(
    decoder: Decoder,
    segment_ids_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    prefix_ids_BT: Int[Array, "B T"] | None = None,
) -> Attend:
    """Attention as `attention.packed_mask` allows it, causal and within a segment.

    Make it once, outside the layers: what the layers share is computed here. Positions
    must count up by one within a segment.

    Args:
      decoder: the policy's shape.
      segment_ids_BT: of each token.
      positions_BT: of each token in its sequence.
      prefix_ids_BT: a segment that each token sees beside its own, or None.

    Returns:
      The map from a layer's index, queries, keys and values to the output.
    """
    window = decoder.sliding_window
    if window is not None and window >= segment_ids_BT.shape[1]:
        window = None
    rows = (segment_ids_BT, positions_BT, prefix_ids_BT)
    is_kernel = uses_kernel(decoder, segment_ids_BT.shape[1], meshes.platform())
    attend = (_of_kernel if is_kernel else _of_einsum)(decoder, rows, window)

    def shared(index: int | Array, q: Array, k: Array, v: Array) -> Array:
        return attend(index, q, *(meshes.repeat_heads(x, dim=2) for x in (k, v)))

    return shared


def uses_kernel(decoder: Decoder, length: int, platform: str) -> bool:
    """Whether rows of `length` tokens go through the kernel on a platform.

    Its products round to bfloat16, so float32 takes the einsums; so do rows that are
    no multiple of the kernel's smallest block.
    """
    if decoder.attention != "auto":
        return decoder.attention == "splash"
    fits = length % splash.LANES == 0
    return platform == "tpu" and decoder.dtype == "bfloat16" and fits


def _of_einsum(
    decoder: Decoder,
    rows: tuple[Array, Array, Array | None],
    window: int | None,
) -> Attend:
    segment_ids_BT, positions_BT, prefix_ids_BT = rows
    masks = tuple(
        attention.packed_mask(segment_ids_BT, positions_BT, each, prefix_ids_BT)
        for each in (None, window)
    )

    def attend(index: int | Array, q: Array, k: Array, v: Array) -> Array:
        mask_BTS = choose(decoder, index, *masks)
        cached = attention.as_cached(k, v)
        return attention.attend(q, *cached, mask_BTS, **score_options(decoder))

    return attend


def _of_kernel(
    decoder: Decoder,
    rows: tuple[Array, Array, Array | None],
    window: int | None,
) -> Attend:
    segment_ids_BT, positions_BT, prefix_ids_BT = rows
    of_global, of_local = (
        splash.of_rows(decoder, segment_ids_BT, positions_BT, prefix_ids_BT, each)
        for each in (None, window)
    )

    def attend(index: int | Array, q: Array, k: Array, v: Array) -> Array:
        if window is None:
            return of_global(q, k, v)
        is_global = decoder.is_global(index)
        if isinstance(is_global, bool):
            return (of_global if is_global else of_local)(q, k, v)
        return jax.lax.cond(jnp.asarray(is_global), of_global, of_local, q, k, v)

    return attend
