"""A short text that tells one set of weights from another."""

import hashlib

import jax
import jax.numpy as jnp

from jigsaw_jax.types import Array, Params


def fingerprint(params: Params) -> str:
    """Of the names, shapes, types and bits of all leaves, however they are sharded.

    The sums are of integers, so they don't depend on the order of the terms. They tell
    an exchanged, changed or moved weight; they are no proof against a forger.

    Args:
      params: any tree of weights.

    Returns:
      Hexadecimal digits.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    sums = jax.device_get(_sums([leaf for _, leaf in paths]))
    digest = hashlib.sha256()
    for (path, leaf), total in zip(paths, sums, strict=True):
        name = jax.tree_util.keystr(path)
        digest.update(f"{name} {leaf.shape} {leaf.dtype} {int(total)}\n".encode())
    return digest.hexdigest()[:32]


@jax.jit
def _sums(leaves: list[Array]) -> list[Array]:
    """Of each leaf, the sum modulo 2^32 of a hash of each value's bits and place."""

    def one(leaf: Array) -> Array:
        unsigned = {2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
        bits = jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)
        place = jnp.zeros(leaf.shape, jnp.uint32)
        for dim, size in enumerate(leaf.shape):
            own = jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, dim)
            place = place * jnp.uint32(size) + own
        return jnp.sum(_mixed(bits ^ _mixed(place)))

    return [one(leaf) for leaf in leaves]


def _mixed(x: Array) -> Array:
    """MurmurHash3's last step: each bit of x changes about half of the result's."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
