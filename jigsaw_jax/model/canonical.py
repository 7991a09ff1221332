"""The canonical option: the same shapes in sampler and learner, so the same bits.

A row of a matrix product depends on how many rows the product has, though not on which
row it is. With `Decoder.canonical_tile` both sides cut their tokens into tiles of that
many rows, and every token attends to as many places as a slot of the cache has. So a
logprob is the same number whether it comes out of a decode step, a prefill, or a packed
batch with its gradient, bit for bit. docs/canonical.md says what that costs.

Tokens stand as rows of one each, `A T ...` with T = 1, the shape of a decode step.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jigsaw_jax.model import attention
from jigsaw_jax.model.attention import KeysValues
from jigsaw_jax.model.decoder import ends, rotary_turns, run_layers
from jigsaw_jax.model.layer import Layer, choose, score_options
from jigsaw_jax.model.tiles import by_tile
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Bool, Float, Int, Params

# Keys and values of some tokens' places, from those that a cache or a batch holds.
Look = Callable[[KeysValues, Array], KeysValues]


def run_layer(
    decoder: Decoder, layer: Layer, x_ATD: Float[Array, "A T D"], turn: Any, attend: Any
) -> tuple[Float[Array, "A T D"], Any]:
    """`layer(x, turn, attend)` by tiles; `attend` is given all A tokens at once."""
    graph, weights = nnx.split(layer)

    def project(weights: Any, x: Array, turn: Any) -> Any:
        return nnx.merge(graph, weights).project(x, turn)

    def finish(weights: Any, x: Array, o: Array) -> Any:
        return nnx.merge(graph, weights).finish(x, o)

    q_ATNH, k_ATKH, v_ATKH = by_tile(decoder, project, weights, x_ATD, turn)
    o_ATNH, carried = attend(q_ATNH, k_ATKH, v_ATKH)
    return by_tile(decoder, finish, weights, x_ATD, o_ATNH), carried


def attend(
    decoder: Decoder,
    q_ATNH: Float[Array, "A T N H"],
    mask_ATS: Bool[Array, "A T S"],
    held: Any,
    *,
    where: Array,
    look: Look,
) -> Float[Array, "A T N H"]:
    """Attention of each token to S places; `look(held, where)` finds them.

    `where` has a row a token, of whatever `look` goes by.
    """

    def one(held: Any, q: Array, mask: Array, where: Array) -> Array:
        k_AKHS, v_AKSH = jax.lax.optimization_barrier(look(held, where))
        return attention.attend(q, k_AKHS, v_AKSH, mask, **score_options(decoder))

    return by_tile(decoder, one, held, q_ATNH, mask_ATS, where)


def attend_cached(
    decoder: Decoder,
    q_BTNH: Float[Array, "B T N H"],
    seen: KeysValues,
    mask_BTS: Bool[Array, "B T S"],
) -> Float[Array, "B T N H"]:
    """`attention.attend` to a cache, by tiles where the option is on."""
    if not decoder.canonical_tile:
        return attention.attend(q_BTNH, *seen, mask_BTS, **score_options(decoder))
    num_rows, num_tokens = mask_BTS.shape[:2]
    out_ATNH = attend(
        decoder,
        q_BTNH.reshape(-1, 1, *q_BTNH.shape[2:]),
        mask_BTS.reshape(-1, 1, mask_BTS.shape[-1]),
        seen,
        where=jnp.repeat(jnp.arange(num_rows), num_tokens),
        look=_look_in_slots,
    )
    return out_ATNH.reshape(q_BTNH.shape)


def normalise(
    decoder: Decoder, params: Params, x_ATD: Float[Array, "A T D"]
) -> Float[Array, "A T D"]:
    """The final norm by tiles."""

    def one(weights: Any, x: Array) -> Array:
        return ends(decoder, {"ends": weights}).normalise(x)

    return by_tile(decoder, one, params["ends"], x_ATD)


def forward(
    decoder: Decoder,
    params: Params,
    tokens_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    segment_ids_BT: Int[Array, "B T"],
    *,
    prefix_ids_BT: Int[Array, "B T"] | None,
    length: int,
    remat: str | None = None,
) -> Float[Array, "B T D"]:
    """`decoder.forward`, with each token attending to `length` places of a cache."""
    num_rows, row = tokens_BT.shape
    places_AS = _places(
        positions_BT,
        segment_ids_BT,
        segment_ids_BT if prefix_ids_BT is None else prefix_ids_BT,
        length,
    )
    positions_AT = positions_BT.reshape(-1, 1)
    turns = rotary_turns(decoder, positions_AT)
    distance_ATS = positions_AT[:, :, None] - jnp.arange(length)[None, None]
    is_past = distance_ATS >= 0
    masks = (is_past, is_past)
    if decoder.sliding_window is not None:
        masks = (is_past, is_past & (distance_ATS < decoder.sliding_window))

    of_rows = tuple(
        attention.packed_mask(segment_ids_BT, positions_BT, window, prefix_ids_BT)
        for window in (None, decoder.sliding_window)
    )

    def body(x: Array, layer: Layer, index: int | Array, _: None) -> Any:
        def attend_rows(*qkv: Array) -> tuple[Array, None]:
            where = _Where(
                places_AS,
                choose(decoder, index, *masks),
                choose(decoder, index, *of_rows),
            )
            return _in_rows(decoder, qkv, where), None

        return run_layer(decoder, layer, x, choose(decoder, index, *turns), attend_rows)

    x_ATD = ends(decoder, params).embed(tokens_BT.reshape(-1, 1))
    x_ATD, _ = run_layers(decoder, params, x_ATD, body, remat=remat)
    return normalise(decoder, params, x_ATD).reshape(num_rows, row, -1)


class _Where(NamedTuple):
    """What the tokens of packed rows see, by places and by rows."""

    places_AS: Int[Array, "A S"]
    mask_ATS: Bool[Array, "A T S"]
    mask_BTT: Bool[Array, "B T T"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_rows(decoder: Decoder, qkv: tuple[Array, ...], where: _Where) -> Array:
    """Attention of packed tokens, each to the places of its own sequence.

    The gradient is that of ordinary attention within the rows: the same function, and
    sums of gradients over gathered places would take longer than all of a layer.
    """
    q, k, v = qkv
    held = (k[:, 0], v[:, 0])
    return attend(
        decoder, q, where.mask_ATS, held, where=where.places_AS, look=_look_in_rows
    )


def _in_rows_forward(
    decoder: Decoder, qkv: tuple[Array, ...], where: _Where
) -> tuple[Array, Any]:
    return _in_rows(decoder, qkv, where), (qkv, where.mask_BTT)


def _in_rows_backward(
    decoder: Decoder, residuals: Any, gradient: Array
) -> tuple[tuple[Array, ...], None]:
    qkv, mask_BTT = residuals
    lead = mask_BTT.shape[:2]

    def ordinary(*qkv: Array) -> Array:
        q, k, v = (x.reshape(*lead, *x.shape[2:]) for x in qkv)
        cached = attention.as_cached(k, v)
        out = attention.attend(q, *cached, mask_BTT, **score_options(decoder))
        return out.reshape(qkv[0].shape)

    _, pull = jax.vjp(ordinary, *qkv)
    return pull(gradient), None


_in_rows.defvjp(_in_rows_forward, _in_rows_backward)


def _look_in_rows(held: Any, places_AS: Int[Array, "A S"]) -> KeysValues:
    return attention.as_cached(*(x[places_AS] for x in held))


def _look_in_slots(seen: KeysValues, slots_A: Int[Array, " A"]) -> KeysValues:
    return jax.tree.map(lambda x: x[slots_A], seen)


def _places(
    positions_BT: Int[Array, "B T"],
    segment_ids_BT: Int[Array, "B T"],
    prefix_ids_BT: Int[Array, "B T"],
    length: int,
) -> Int[Array, "A S"]:
    """Which of the B T tokens has position s in each token's sequence.

    A sequence is a segment, behind the prefix that it goes on from: its own first
    token's position says where it does. Places after the token mean nothing.
    """
    num_rows, row = positions_BT.shape
    order = jnp.arange(length)[None, None]
    first_BT = _first_of(segment_ids_BT, segment_ids_BT)
    start_BT = jnp.take_along_axis(positions_BT, first_BT, axis=1)
    own_BTS = (first_BT - start_BT)[:, :, None] + order
    shared_BT = _first_of(segment_ids_BT, prefix_ids_BT)
    shared_BTS = shared_BT[:, :, None] + order
    is_own = order >= start_BT[:, :, None]
    places_BTS = jnp.clip(jnp.where(is_own, own_BTS, shared_BTS), 0, row - 1)
    flat = places_BTS + row * jnp.arange(num_rows)[:, None, None]
    return flat.reshape(-1, length)


def _first_of(
    segment_ids_BT: Int[Array, "B T"], wanted_BT: Int[Array, "B T"]
) -> Int[Array, "B T"]:
    """Where in its row the segment begins that each token wants."""
    is_wanted = segment_ids_BT[:, None, :] == wanted_BT[:, :, None]
    return jnp.argmax(is_wanted, axis=-1)
