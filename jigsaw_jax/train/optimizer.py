"""AdamW with a learning rate that is a function of the update alone."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jigsaw_jax.settings import Optimizer
from jigsaw_jax.types import Array, Float, Params


def learning_rate(optimizer: Optimizer, update: int, updates: int) -> float:
    """The rate of `update`, counted from 0, of `updates`; skipped ones count too.

    Warm-up climbs linearly and has the peak at its last update; the decay ends with
    `end_fraction` of the peak at the last update.
    """
    peak, warm_up = optimizer.learning_rate, optimizer.warmup_updates
    if update < warm_up:
        return peak * (update + 1) / warm_up
    if optimizer.schedule == "constant":
        return peak
    left = max(updates - 1 - warm_up, 1)
    progress = min((update - warm_up) / left, 1.0)
    if optimizer.schedule == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return peak * (1 - progress * (1 - optimizer.end_fraction))


def transformation(
    optimizer: Optimizer, logical_axes: Any
) -> optax.GradientTransformation:
    """AdamW before its learning rate: clip, scale by moments, add decayed weights.

    Weight decay leaves out norms and biases: whatever has one dim besides layers.
    """

    def is_matrix(names: tuple[str, ...]) -> bool:
        return len([name for name in names if name != "layers"]) > 1

    decayed = jax.tree.map(
        is_matrix, logical_axes, is_leaf=lambda x: isinstance(x, tuple)
    )
    clip_norm = optimizer.clip_norm
    return optax.chain(
        optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm),
        optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.eps),
        optax.add_decayed_weights(optimizer.weight_decay, mask=decayed),
    )


def init(transform: optax.GradientTransformation, params: Params) -> Any:
    """Zero moments, float32 whatever the type of the params."""
    return transform.init(jax.tree.map(lambda x: x.astype(jnp.float32), params))


def apply(
    transform: optax.GradientTransformation,
    params: Params,
    opt_state: Any,
    *,
    gradients: Params,
    rate: Float[Array, ""],
) -> tuple[Params, Any]:
    """Params and optimizer state behind one step on float32 gradients."""
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    # optax mixes integer counts with floats, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = transform.update(gradients, opt_state, wide)
    params = jax.tree.map(
        lambda old, x, step: (x - rate * step).astype(old.dtype), params, wide, updates
    )
    return params, opt_state
