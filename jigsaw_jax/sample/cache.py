"""The engine's key-value cache behind an opaque handle of slots."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jigsaw_jax.model import decode
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Int


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("layers",),
    meta_fields=("slot_dim",),
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
    """Keys and values of some slots; callers never look inside.

    Attributes:
      layers: what `model.decode` reads and writes.
      slot_dim: the dim of every leaf that counts slots.
    """

    layers: Any
    slot_dim: int

    def read(self, slot: Int[Array, ""]) -> "Cache":
        """A cache of one slot, a copy."""
        return self._map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, slot, 1, self.slot_dim)
        )

    def write(self, slot: Int[Array, ""], one: "Cache") -> "Cache":
        """This cache with a slot replaced by the cache of one slot."""
        return self._map(
            lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, slot, self.slot_dim),
            one,
        )

    def _map(self, function: Any, *others: "Cache") -> "Cache":
        layers = jax.tree.map(function, self.layers, *(o.layers for o in others))
        return dataclasses.replace(self, layers=layers)


def empty(decoder: Decoder, num_slots: int, length: int) -> Cache:
    """A cache of zeros."""
    layers = decode.empty_cache(decoder, num_slots, length)
    return Cache(layers=layers, slot_dim=1 if decoder.scan_layers else 0)


def padded(decoder: Decoder, layers: Any, length: int) -> Cache:
    """One slot of `length` positions from a prefill, zero behind it.

    An insert writes the whole slot, zeros too: nothing of the slot's last owner is
    left, not even a NaN that would pass through a zero attention weight.
    """

    def pad(part: Array, dim: int) -> Array:
        missing = [(0, 0)] * part.ndim
        missing[dim] = (0, length - part.shape[dim])
        return jnp.pad(part, missing)

    def one(layer: decode.KeysValues) -> decode.KeysValues:
        k, v = layer
        return decode.KeysValues(pad(k, k.ndim - 1), pad(v, v.ndim - 2))

    one_slot = one(layers) if decoder.scan_layers else tuple(map(one, layers))
    return Cache(layers=one_slot, slot_dim=1 if decoder.scan_layers else 0)
