"""Work on rows cut into tiles of one height, kept apart from all that surrounds it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array

# Numbers that a backward pass has of its rows at once, where there would be many.
_AT_ONCE_MAX = 1 << 24


def by_tile(
    decoder: Decoder,
    function: Callable[..., Any],
    weights: Any,
    *rows: Any,
    width: int = 0,
) -> Any:
    """`function(weights, *rows)` for arrays `[A, ...]`, a tile of rows at a time.

    Barriers keep the compiler from fusing a tile's work with what stands around it,
    which could change how a sum is rounded. So could a loop of one trip, which is no
    loop once it is compiled: there are two tiles or more.

    The backward pass takes all rows together, and computes again what it needs: its
    own rounding is nobody's to repeat, and sums of gradients over tiles cost more than
    all else.

    Args:
      decoder: whose tile it is.
      function: treats each row alone, and closes over no array.
      weights: what all rows use, any tree of arrays.
      *rows: trees of arrays with A rows.
      width: numbers that `function` makes of a row, where they are many; the backward
        pass then takes as many rows at once as make a few million. 0 takes all.

    Returns:
      What `function` returns, with A rows.
    """
    num_rows = len(jax.tree.leaves(rows)[0])
    at_once = num_rows
    if width:
        at_once = min(max(_AT_ONCE_MAX // width, decoder.canonical_tile), num_rows)
    return _tiled(function, decoder.canonical_tile, at_once, weights, rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _tiled(
    function: Callable[..., Any], tile: int, at_once: int, weights: Any, rows: tuple
) -> Any:
    del at_once

    def one(parts: tuple) -> Any:
        shared, parts = jax.lax.optimization_barrier((weights, parts))
        return jax.lax.optimization_barrier(function(shared, *parts))

    return _mapped(one, rows, tile, least=2)


def _forward(
    function: Callable[..., Any], tile: int, at_once: int, weights: Any, rows: tuple
) -> tuple[Any, tuple]:
    return _tiled(function, tile, at_once, weights, rows), (weights, rows)


def _backward(
    function: Callable[..., Any],
    tile: int,
    at_once: int,
    residuals: tuple,
    gradient: Any,
) -> tuple:
    del tile

    def again(weights: Any, rows: tuple) -> Any:
        one = jax.checkpoint(lambda parts: function(weights, *parts))
        if at_once >= len(jax.tree.leaves(rows)[0]):
            return one(rows)
        return _mapped(one, rows, at_once, least=1)

    _, pull = jax.vjp(again, *residuals)
    return pull(gradient)


_tiled.defvjp(_forward, _backward)


def _mapped(one: Callable[..., Any], rows: tuple, height: int, *, least: int) -> Any:
    """`one(rows)` over at least `least` parts of `height` rows, zeros behind them."""
    num_rows = len(jax.tree.leaves(rows)[0])
    num_parts = max(-(-num_rows // height), least)

    def split(x: Array) -> Array:
        padding = [(0, num_parts * height - num_rows)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding).reshape(num_parts, height, *x.shape[1:])

    out = jax.lax.map(one, jax.tree.map(split, rows))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num_rows], out)
