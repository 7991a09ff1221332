"""The decoder as pure functions over a nested dict of arrays."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import lora, rotary, self_attention
from jigsaw_jax.model.layer import PRODUCT, Ends, Layer, choose
from jigsaw_jax.model.splash import RESIDUAL
from jigsaw_jax.model.tiles import by_tile
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Float, Int, Params

Module = TypeVar("Module", Ends, Layer)
Body = Callable[[Array, Layer, int | Array, Any], tuple[Array, Any]]


@functools.partial(jax.jit, static_argnums=0)
def init_params(decoder: Decoder, seed: int | Array) -> Params:
    """Random weights; the same values whether layers are scanned or unrolled.

    Returns `{"ends": {...}, "layers": {...}}`: with `scan_layers` each leaf of
    "layers" has a leading dim L, otherwise "layers" has one dict a layer, "000" on.
    Adapters, where there are some, are beside them; see `init_adapters`.
    """
    key, base = jax.random.key(seed), decoder.base
    layers = jax.lax.map(
        lambda index: _drawn(Layer, base, jax.random.fold_in(key, index)),
        jnp.arange(1, decoder.num_layers + 1),
    )
    params = {"ends": _drawn(Ends, base, key), "layers": layers}
    params = params if decoder.scan_layers else unstack(params)
    return params | init_adapters(decoder, seed)


@functools.partial(jax.jit, static_argnums=0)
def init_adapters(decoder: Decoder, seed: int | Array) -> Params:
    """`{"adapters": {...}}` that leave the base as it is, laid out like its layers.

    Empty where the decoder has none.
    """
    if decoder.lora.rank is None:
        return {}
    shapes = nnx.to_pure_dict(nnx.state(_abstract(Layer, decoder)))[lora.ADAPTERS]
    key = jax.random.fold_in(jax.random.key(seed), 0)
    drawn = jax.lax.map(
        lambda index: lora.drawn(shapes, jax.random.fold_in(key, index)),
        jnp.arange(decoder.num_layers),
    )
    params = {lora.ADAPTERS: drawn}
    return params if decoder.scan_layers else unstack(params)


def layer_name(index: int) -> str:
    """Name of an unrolled layer; sorts in layer order."""
    return f"{index:03d}"


def stack(params: Params) -> Params:
    """Params of unrolled layers with their leaves stacked `[L, ...]`."""

    def stacked(layers: Params) -> Params:
        in_order = [layers[name] for name in sorted(layers)]
        return jax.tree.map(lambda *x: jnp.stack(x), *in_order)

    return params | {name: stacked(params[name]) for name in _of_layers(params)}


def is_stacked(params: Params) -> bool:
    """Whether params, or subtrees of them, are those of scanned layers."""
    trees = [params[name] for name in _of_layers(params)]
    return any(layer_name(0) not in tree for tree in trees)


def unstack(params: Params) -> Params:
    """Params of scanned layers with one dict a layer."""

    def unstacked(stack: Params) -> Params:
        num_layers = len(jax.tree.leaves(stack)[0])
        return {
            layer_name(i): jax.tree.map(lambda x, i=i: x[i], stack)
            for i in range(num_layers)
        }

    return params | {name: unstacked(params[name]) for name in _of_layers(params)}


@functools.cache
def logical_axes(decoder: Decoder) -> Params:
    """For each leaf of the params, a tuple with the logical name of each dim.

    Cached, since it traces the modules and every publish asks; do not change it.
    """

    def axes(module: Any, lead: tuple[str, ...]) -> Params:
        state = nnx.state(_abstract(module, decoder))
        named = nnx.map_state(
            lambda _, leaf: (*lead, *leaf.get_metadata()["axes"]), state
        )
        return nnx.to_pure_dict(named)

    if decoder.scan_layers:
        layers = axes(Layer, ("layers",))
    else:
        names = map(layer_name, range(decoder.num_layers))
        layers = {name: axes(Layer, ()) for name in names}
    whole = {"ends": axes(Ends, ()), "layers": layers}
    if decoder.lora.rank is None:
        return whole
    each = [layers] if decoder.scan_layers else layers.values()
    adapters = [layer.pop(lora.ADAPTERS) for layer in each]
    of_names = dict(zip(layers, adapters, strict=False))
    return whole | {lora.ADAPTERS: adapters[0] if decoder.scan_layers else of_names}


def forward(
    decoder: Decoder,
    params: Params,
    tokens_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    segment_ids_BT: Int[Array, "B T"],
    *,
    prefix_ids_BT: Int[Array, "B T"] | None = None,
    remat: str | None = None,
) -> Float[Array, "B T D"]:
    """Normalised hidden states of packed rows.

    A token attends to the tokens before it that have its segment id, or the one that
    `prefix_ids_BT` names. Segment 0 is padding: its outputs are finite and mean
    nothing. `remat` recomputes each layer in the backward pass, but for what it names:
    "nothing", or "products" of weights and the attention kernel's output.
    """
    turns = rotary_turns(decoder, positions_BT)
    attend_rows = self_attention.of_rows(
        decoder, segment_ids_BT, positions_BT, prefix_ids_BT
    )

    def body(x: Array, layer: Layer, index: int | Array, _: None) -> Any:
        def attend(q: Array, k: Array, v: Array) -> tuple[Array, None]:
            return attend_rows(index, q, k, v), None

        return layer(x, choose(decoder, index, *turns), attend)

    x_BTD = ends(decoder, params).embed(tokens_BT)
    x_BTD, _ = run_layers(decoder, params, x_BTD, body, remat=remat)
    return ends(decoder, params).normalise(x_BTD)


def logits(decoder: Decoder, params: Params, hidden: Array) -> Array:
    """Float32 logits `[..., V]` of normalised hidden states `[..., D]`."""
    return head(decoder, params)(hidden)


def head(decoder: Decoder, params: Params) -> Callable[[Array], Array]:
    """The map from normalised hidden states `[..., D]` to float32 logits `[..., V]`.

    Make it outside a loop that calls it: on a mesh the head's weights are laid out
    here, and their gradients are summed in float32. Each device takes its share of the
    vocabulary for all rows, since rows are far smaller than the head; where the
    vocabulary does not divide, its share of the rows.
    """
    if decoder.canonical_tile:
        return functools.partial(_head_by_tile, decoder, params)
    if not meshes.is_spread("logits", decoder.vocab_size):
        spread = ends(decoder, params)
        return lambda hidden: spread.logits(meshes.constrain(hidden, "rows"))
    weights = dict(params["ends"])
    if decoder.tied_head:
        weights["embedding"] = meshes.constrain(weights["embedding"], "logits")
    else:
        weights["head"] = meshes.constrain(weights["head"], None, "logits")
    spread = ends(decoder, {"ends": weights})

    def logits_of(hidden: Array) -> Array:
        logits = spread.logits(meshes.constrain(hidden))
        return meshes.constrain(logits, *(None,) * (logits.ndim - 1), "logits")

    return logits_of


def ends(decoder: Decoder, params: Params) -> Ends:
    """The module of the embedding, the final norm and the head."""
    graph, _ = nnx.split(_abstract(Ends, decoder))
    return nnx.merge(graph, params["ends"])


def _head_by_tile(decoder: Decoder, params: Params, hidden: Array) -> Array:
    """The head of the canonical option."""

    def one(weights: Params, rows: Array) -> Array:
        return ends(decoder, {"ends": weights}).logits(rows)

    rows = hidden.reshape(-1, hidden.shape[-1])
    logits_AV = by_tile(decoder, one, params["ends"], rows)
    return logits_AV.reshape(*hidden.shape[:-1], -1)


def run_layers(
    decoder: Decoder,
    params: Params,
    x_BTD: Float[Array, "B T D"],
    body: Body,
    *,
    contexts: Any = None,
    remat: str | None = None,
) -> tuple[Float[Array, "B T D"], Any]:
    """Runs `body(x, layer, index, context)` over the layers, scanned or unrolled.

    `contexts` and what the bodies carry out (the second of the result) hold one entry
    a layer: a tuple of them when unrolled, stacked `[L, ...]` when scanned. `index` is
    an int when unrolled and a traced scalar when scanned. A scanned body is given the
    whole stack and returns it, so that it can write one token of a cache in place.
    """
    graph, _ = nnx.split(_abstract(Layer, decoder))
    keep = (PRODUCT, RESIDUAL) if remat == "products" else ()
    policy = jax.checkpoint_policies.save_only_these_names(*keep)
    layers = _with_adapters(decoder, params)

    def step(x: Array, weights: Params, context: Any, index: int | Array) -> Any:
        x = meshes.constrain(x, "rows")
        return body(x, nnx.merge(graph, weights), index, context)

    if decoder.scan_layers:
        step = jax.checkpoint(step, policy=policy) if remat else step
        items = (layers, jnp.arange(decoder.num_layers))
        if contexts is None:
            return jax.lax.scan(
                lambda x, item: step(x, item[0], None, item[1]), x_BTD, items
            )
        carry, _ = jax.lax.scan(
            lambda carry, item: (step(carry[0], item[0], carry[1], item[1]), None),
            (x_BTD, contexts),
            items,
        )
        return carry
    if remat:
        step = jax.checkpoint(step, policy=policy, static_argnums=3)
    carried = []
    for index in range(decoder.num_layers):
        context = None if contexts is None else contexts[index]
        x_BTD, out = step(x_BTD, layers[layer_name(index)], context, index)
        carried.append(out)
    return x_BTD, tuple(carried)


def rotary_turns(
    decoder: Decoder, positions_BT: Int[Array, "B T"]
) -> tuple[rotary.Turn, rotary.Turn]:
    """Rotary angles of global and of local layers."""
    of_global, of_local = (
        rotary.turn(positions_BT, rotary.rates(decoder, is_global=is_global))
        for is_global in (True, False)
    )
    return of_global, of_local


def _of_layers(params: Params) -> list[str]:
    """Subtrees that have an entry a layer."""
    return [name for name in params if name != "ends"]


def _with_adapters(decoder: Decoder, params: Params) -> Params:
    """The layers' weights, each layer's adapters within."""
    layers = params["layers"]
    if decoder.lora.rank is None:
        return layers
    adapters = params[lora.ADAPTERS]
    if decoder.scan_layers:
        return {**layers, lora.ADAPTERS: adapters}
    return {
        name: {**layer, lora.ADAPTERS: adapters[name]} for name, layer in layers.items()
    }


def _drawn(module: Any, decoder: Decoder, key: Array) -> Params:
    """Random weights of one module.

    All of them are slices of one draw: a program with a draw for each weight takes
    ten times as long to compile.
    """
    leaves = jax.tree.leaves(nnx.to_pure_dict(nnx.state(_abstract(module, decoder))))
    sizes = [leaf.size for leaf in leaves if leaf.ndim > 1]
    flat = jax.random.normal(key, (sum(sizes),), jnp.dtype(decoder.param_dtype))
    first = 0

    def draw(shape: tuple[int, ...]) -> Array:
        nonlocal first
        piece = flat[first : first + math.prod(shape)]
        first += piece.size
        return piece.reshape(shape)

    params = nnx.to_pure_dict(nnx.state(module(decoder, draw)))
    assert first == flat.size
    return params


def _abstract(module: type[Module], decoder: Decoder) -> Module:
    """The module with shapes in the place of weights."""
    dtype = jnp.dtype(decoder.param_dtype)
    return nnx.eval_shape(
        lambda: module(decoder, lambda shape: jnp.zeros(shape, dtype))
    )
