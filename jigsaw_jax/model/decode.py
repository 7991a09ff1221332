"""The decoder with a key-value cache: prefill, one decode step, a longer chunk.

A cache holds one `KeysValues` a layer (a tuple of them, or stacked `[L, ...]` with
`scan_layers`). Index s of its S dim is the token's absolute position, so the order of
a sum depends on the position alone, never on when or where a sequence came in.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jigsaw_jax.model import attention, canonical, self_attention
from jigsaw_jax.model.attention import KeysValues
from jigsaw_jax.model.decoder import ends, rotary_turns, run_layers
from jigsaw_jax.model.layer import Layer, choose
from jigsaw_jax.model.quantise import dequantise, like, quantise
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Bool, Float, Int, Params

# The cache with a layer's new keys and values in it, and that layer's own.
Written = tuple[Any, KeysValues]
# Maps a layer's index and cache, and its tokens' query, key and value, to the output
# and the cache.
Attend = Callable[[int | Array, Any, Array, Array, Array], tuple[Array, Any]]


def empty_cache(
    decoder: Decoder, num_slots: int, length: int, kv_dtype: str | None = None
) -> Any:
    """A cache of zeros for `num_slots` sequences of `length` positions.

    With `kv_dtype` "int8" each array is a `Quantised`.
    """
    lead = (decoder.num_layers,) if decoder.scan_layers else ()
    k, h = decoder.num_kv_heads, decoder.head_dim

    def one_layer() -> KeysValues:
        dtype = jnp.dtype(decoder.dtype)
        return _kept(
            jnp.zeros((*lead, num_slots, k, h, length), dtype),
            jnp.zeros((*lead, num_slots, k, length, h), dtype),
            kv_dtype,
        )

    if decoder.scan_layers:
        return one_layer()
    return tuple(one_layer() for _ in range(decoder.num_layers))


def prefill(
    decoder: Decoder,
    params: Params,
    tokens_T: Int[Array, " T"],
    *,
    kv_dtype: str | None = None,
    length: int | None = None,
) -> Any:
    """The cache of one sequence of T tokens from position 0, for one slot.

    What stands at the places of padding behind the tokens is finite and means nothing.
    The tokens attend to exact keys and values, whatever these are kept in; with the
    canonical option to `length` places (T where that is None), as in a decode step.
    """
    positions_BT = jnp.arange(tokens_T.shape[0])[None]
    attend: Attend
    if decoder.canonical_tile:
        num_places = length or tokens_T.shape[0]
        mask_BTS = positions_BT[:, :, None] >= jnp.arange(num_places)[None, None]
        behind = (0, num_places - tokens_T.shape[0])

        def write(_: Any, index: int | Array, k: Array, v: Array) -> Written:
            del index
            padding = [(0, 0), behind, (0, 0), (0, 0)]
            seen = attention.as_cached(jnp.pad(k, padding), jnp.pad(v, padding))
            return _kept(*attention.as_cached(k, v), kv_dtype), seen

        attend = _attending(decoder, mask_BTS, positions_BT, write)
    else:
        attend_rows = self_attention.of_rows(
            decoder, jnp.ones_like(positions_BT), positions_BT
        )

        def of_rows(
            index: int | Array, _: Any, q: Array, k: Array, v: Array
        ) -> tuple[Array, Any]:
            kept = _kept(*attention.as_cached(k, v), kv_dtype)
            return attend_rows(index, q, k, v), kept

        attend = of_rows

    _, cache = run(decoder, params, tokens_T[None], positions_BT, None, attend)
    return cache


def decode_step(
    decoder: Decoder,
    params: Params,
    tokens_B: Int[Array, " B"],
    positions_B: Int[Array, " B"],
    cache: Any,
) -> tuple[Float[Array, "B D"], Any]:
    """Feeds one token to each slot; normalised hidden states, and the cache with it."""
    slots = jnp.arange(tokens_B.shape[0])

    def write(old: KeysValues, index: int | Array, k: Array, v: Array) -> Written:
        # A scatter of B rows, into all layers' cache where they are stacked: written
        # back by the layer, the cache would be copied whole at every step.
        at = (index, slots) if decoder.scan_layers else (slots,)
        at_k = (*at, slice(None), slice(None), positions_B)
        at_v = (*at, slice(None), positions_B)
        fresh = KeysValues(like(old.k_BKHS, k[:, 0], -1), like(old.v_BKSH, v[:, 0], -1))
        new = KeysValues(
            jax.tree.map(lambda x, y: x.at[at_k].set(y), old.k_BKHS, fresh.k_BKHS),
            jax.tree.map(lambda x, y: x.at[at_v].set(y), old.v_BKSH, fresh.v_BKSH),
        )
        return new, _of_layer(decoder, new, index)

    length = _cache_length(decoder, cache)
    mask_BTS = jnp.arange(length)[None, None] <= positions_B[:, None, None]
    attend = _attending(decoder, mask_BTS, positions_B[:, None], write)
    hidden_BTD, cache = run(
        decoder, params, tokens_B[:, None], positions_B[:, None], cache, attend
    )
    return hidden_BTD[:, 0], cache


def extend(
    decoder: Decoder,
    params: Params,
    tokens_T: Int[Array, " T"],
    position: Int[Array, ""],
    cache: Any,
) -> Any:
    """Feeds T tokens from `position` on to a cache of one slot.

    Tokens that would lie behind the cache's end are ignored. A position that holds
    padding is overwritten before anything attends to it.
    """
    length = _cache_length(decoder, cache)
    positions_BT = (position + jnp.arange(tokens_T.shape[0]))[None]
    mask_BTS = jnp.arange(length)[None, None] <= positions_BT[:, :, None]
    place_S = jnp.arange(length) - position
    is_new_S = (place_S >= 0) & (place_S < tokens_T.shape[0])
    place_S = jnp.clip(place_S, 0, tokens_T.shape[0] - 1)

    def write(old: KeysValues, index: int | Array, k: Array, v: Array) -> Written:
        fresh = attention.as_cached(k[:, place_S], v[:, place_S])
        new = KeysValues(
            like(old.k_BKHS, fresh.k_BKHS, -2), like(old.v_BKSH, fresh.v_BKSH, -1)
        )
        own = _of_layer(decoder, old, index)
        is_new_k, is_new_v = (
            is_new_S[None, None, None, :],
            is_new_S[None, None, :, None],
        )
        own = KeysValues(
            jax.tree.map(
                lambda x, y: jnp.where(is_new_k, x, y), new.k_BKHS, own.k_BKHS
            ),
            jax.tree.map(
                lambda x, y: jnp.where(is_new_v, x, y), new.v_BKSH, own.v_BKSH
            ),
        )
        if not decoder.scan_layers:
            return own, own
        whole = jax.tree.map(
            lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, index, 0), old, own
        )
        return whole, own

    attend = _attending(decoder, mask_BTS, positions_BT, write)
    _, cache = run(decoder, params, tokens_T[None], positions_BT, cache, attend)
    return cache


def run(
    decoder: Decoder,
    params: Params,
    tokens_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    cache: Any,
    attend: Attend,
) -> tuple[Float[Array, "B T D"], Any]:
    """Normalised hidden states, and the cache that `attend` writes and reads.

    With the canonical option every token is a row of its own, but for `attend`.
    """
    lead, is_canonical = tokens_BT.shape, bool(decoder.canonical_tile)
    if is_canonical:
        tokens_BT, positions_BT = (x.reshape(-1, 1) for x in (tokens_BT, positions_BT))
    turns = rotary_turns(decoder, positions_BT)

    def body(x: Array, layer: Layer, index: int | Array, old: Any) -> tuple[Array, Any]:
        def of_layer(*qkv: Array) -> tuple[Array, Any]:
            q, k, v = (y.reshape(*lead, *y.shape[2:]) for y in qkv)
            out, new = attend(index, old, q, k, v)
            return out.reshape(*tokens_BT.shape, *out.shape[2:]), new

        turn = choose(decoder, index, *turns)
        if is_canonical:
            return canonical.run_layer(decoder, layer, x, turn, of_layer)
        return layer(x, turn, of_layer)

    x_BTD = ends(decoder, params).embed(tokens_BT)
    x_BTD, cache = run_layers(decoder, params, x_BTD, body, contexts=cache)
    if is_canonical:
        hidden_BTD = canonical.normalise(decoder, params, x_BTD)
    else:
        hidden_BTD = ends(decoder, params).normalise(x_BTD)
    return hidden_BTD.reshape(*lead, -1), cache


def _attending(
    decoder: Decoder,
    mask_BTS: Bool[Array, "B T S"],
    positions_BT: Int[Array, "B T"],
    write: Callable[..., Written],
) -> Attend:
    """A layer writes its keys and values, then attends to what is cached."""
    masks = (mask_BTS, windowed(decoder, mask_BTS, positions_BT))

    def attend(
        index: int | Array, old: Any, q: Array, k: Array, v: Array
    ) -> tuple[Array, Any]:
        new, own = write(old, index, k, v)
        seen = KeysValues(
            dequantise(own.k_BKHS, q.dtype), dequantise(own.v_BKSH, q.dtype)
        )
        mask = choose(decoder, index, *masks)
        return canonical.attend_cached(decoder, q, seen, mask), new

    return attend


def _kept(k: Array, v: Array, kv_dtype: str | None) -> KeysValues:
    """Keys `[..., H, S]` and values `[..., S, H]` as the cache holds them."""
    if kv_dtype is None:
        return KeysValues(k, v)
    # The annotations of the record are those of a cache that isn't quantised.
    pair: Any = (quantise(k, -2), quantise(v, -1))
    return KeysValues(*pair)


def _of_layer(decoder: Decoder, layers: Any, index: int | Array) -> KeysValues:
    """One layer of a stacked cache; an unrolled layer has its own already."""
    if not decoder.scan_layers:
        return layers
    return jax.tree.map(
        lambda x: jax.lax.dynamic_index_in_dim(x, index, 0, keepdims=False), layers
    )


def _cache_length(decoder: Decoder, cache: Any) -> int:
    """S."""
    layer = cache if decoder.scan_layers else cache[0]
    return jax.tree.leaves(layer)[0].shape[-1]


def windowed(
    decoder: Decoder,
    mask_BTS: Bool[Array, "B T S"],
    positions_BT: Int[Array, "B T"],
) -> Bool[Array, "B T S"]:
    """The mask of a local layer."""
    if decoder.sliding_window is None:
        return mask_BTS
    places = jnp.arange(mask_BTS.shape[-1])[None, None]
    return mask_BTS & (positions_BT[:, :, None] - places < decoder.sliding_window)
