"""The policy: a flax.nnx decoder, its decode path and its weight formats."""

from jigsaw_jax.model.decoder import (
    forward,
    head,
    init_adapters,
    init_params,
    is_stacked,
    logical_axes,
    logits,
    stack,
    unstack,
)

__all__ = [
    "forward",
    "head",
    "init_adapters",
    "init_params",
    "is_stacked",
    "logical_axes",
    "logits",
    "stack",
    "unstack",
]
