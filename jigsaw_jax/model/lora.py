"""Low-rank adapters beside a layer's weights, in a subtree of the params of their own.

    {"ends": ..., "layers": {"000": {"query": W, ...}, ...},
     "adapters": {"000": {"query": {"a": A, "b": B}, ...}, ...}}

A has the weight's input dims and then the rank, B the rank and then its output dims.
B starts at zero, so that the first policy is the base exactly.
Source: Hu et al. 2021, LoRA.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Params

ADAPTERS = "adapters"
_RANK = "Y"


class Adapter(nnx.Module):
    """A and B beside one weight, in float32 whatever the type of the base.

    Args:
      weight: what they stand beside.
      num_in: dims of it that its product sums over.
      rank: of A and B.
    """

    def __init__(self, weight: nnx.Param, num_in: int, rank: int) -> None:
        shape, axes = weight[...].shape, weight.get_metadata()["axes"]
        self.a = nnx.Param(
            jnp.zeros((*shape[:num_in], rank)), axes=(*axes[:num_in], "rank")
        )
        self.b = nnx.Param(
            jnp.zeros((rank, *shape[num_in:])), axes=("rank", *axes[num_in:])
        )


class Adapters(nnx.Module):
    """The adapters of one layer, each under the name of its weight.

    Args:
      weights: that have one.
      rank: of each.
    """

    def __init__(self, weights: dict[str, nnx.Param], rank: int) -> None:
        for name, weight in weights.items():
            num_in = 2 if name == "output" else 1
            setattr(self, name, Adapter(weight, num_in, rank))


def equations(equation: str) -> tuple[str, str]:
    """Those of x A and of (x A) B, from that of x W."""
    inputs, of_out = equation.split("->")
    of_x, of_weight = inputs.split(",")
    summed = "".join(dim for dim in of_weight if dim in of_x)
    others = "".join(dim for dim in of_weight if dim not in of_x)
    of_low = "".join(dim for dim in of_x if dim not in of_weight) + _RANK
    return (
        f"{of_x},{summed}{_RANK}->{of_low}",
        f"{of_low},{_RANK}{others}->{of_out}",
    )


def drawn(shapes: Params, key: Array) -> Params:
    """First values of one layer's adapters.

    A is uniform over plus and minus the root of one over its inputs, as in PEFT, so
    that learning rates from there carry over.
    """
    sizes = {name: math.prod(pair["a"].shape) for name, pair in shapes.items()}
    flat = jax.random.uniform(key, (sum(sizes.values()),), minval=-1.0, maxval=1.0)
    values, first = {}, 0
    for name, pair in shapes.items():
        *inputs, _ = pair["a"].shape
        piece = flat[first : first + sizes[name]].reshape(pair["a"].shape)
        first += sizes[name]
        values[name] = {
            "a": piece * math.prod(inputs) ** -0.5,
            "b": jnp.zeros(pair["b"].shape),
        }
    return values


def split(tree: Params) -> tuple[Params, Params]:
    """What trains and what is frozen, of params or of any tree with their keys.

    Without adapters everything trains and nothing is frozen. `{**frozen, **trained}`
    joins them again.
    """
    if ADAPTERS not in tree:
        return tree, {}
    frozen = {name: part for name, part in tree.items() if name != ADAPTERS}
    return {ADAPTERS: tree[ADAPTERS]}, frozen


def merged(decoder: Decoder, params: Params, path: tuple[str, ...]) -> Array:
    """One leaf of the base with its adapter, where it has one, added in float32.

    Args:
      decoder: whose params.
      params: with adapters, or the base alone.
      path: of the leaf in the base.

    Returns:
      The leaf.
    """
    leaf: Any = params
    for key in path:
        leaf = leaf[key]
    own, *inside = path
    if own != "layers" or path[-1] not in decoder.lora.names or ADAPTERS not in params:
        return leaf
    pair = params[ADAPTERS]
    for key in inside:
        pair = pair[key]
    lead, rank = leaf.shape[: decoder.scan_layers], decoder.lora.rank
    delta = jnp.matmul(
        pair["a"].reshape(*lead, -1, rank),
        pair["b"].reshape(*lead, rank, -1),
        precision=jax.lax.Precision.HIGHEST,
    )
    return leaf.astype(jnp.float32) + decoder.lora.scale * delta.reshape(leaf.shape)
