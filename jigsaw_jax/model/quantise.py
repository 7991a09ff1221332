"""Keys and values in int8, with a float32 scale for each token and head."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from jigsaw_jax.types import Array

_LARGEST = 127


class Quantised(NamedTuple):
    """An array as int8 values and scales; the head's dim is 1 in the scales.

    Every other dim is that of the array, so code that cuts, pads and writes along
    those treats the two alike.
    """

    values: Array
    scales: Array


def quantise(x: Array, axis: int) -> Quantised:
    """The nearest of 255 values, the largest of the head's dim `axis` as 127."""
    x = x.astype(jnp.float32)
    scales = jnp.max(jnp.abs(x), axis=axis, keepdims=True) / _LARGEST
    values = jnp.round(x / jnp.where(scales == 0, 1.0, scales))
    return Quantised(values.astype(jnp.int8), scales)


def like(kept: Any, x: Array, axis: int) -> Any:
    """`x` in the form in which `kept` holds such arrays."""
    return quantise(x, axis) if isinstance(kept, Quantised) else x


def dequantise(kept: Any, dtype: Any) -> Array:
    """The array that `kept` stands for, in the compute type."""
    if not isinstance(kept, Quantised):
        return kept
    return (kept.values.astype(jnp.float32) * kept.scales).astype(dtype)
