"""The engine's key-value cache behind opaque handles: slots side by side, or pages."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jigsaw_jax.model import decode, paged
from jigsaw_jax.model.paged import Paging, SlotPages
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Float, Int, Params


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("layers",),
    meta_fields=("decoder",),
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotCache:
    """Keys and values of some slots, each of full length; callers never look inside.

    With one slot it is also what a prefix and an extracted slot are, of either cache.

    Attributes:
      layers: what `model.decode` reads and writes.
      decoder: whose cache it is.
    """

    layers: Any
    decoder: Decoder

    @property
    def slot_dim(self) -> int:
        """The dim of every leaf that counts slots."""
        return 1 if self.decoder.scan_layers else 0

    def read(self, slot: Int[Array, ""]) -> "SlotCache":
        """A cache of one slot, a copy."""
        return self._map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, slot, 1, self.slot_dim)
        )

    def parts(self, one: "SlotCache") -> "SlotCache":
        """One slot in the form that `write` takes."""
        return one

    def write(self, slot: Int[Array, ""], one: "SlotCache") -> "SlotCache":
        """This cache with a slot replaced by the cache of one slot."""
        return self._map(
            lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, slot, self.slot_dim),
            one,
        )

    def take(self, slots_C: Int[Array, " C"]) -> "SlotCache":
        """A cache of these slots in this order; zeros where a number has no slot."""
        return self._map(
            lambda x: jnp.take(x, slots_C, self.slot_dim, mode="fill", fill_value=0)
        )

    def decode_step(
        self, params: Params, tokens_B: Int[Array, " B"], slots: SlotPages
    ) -> tuple[Float[Array, "B D"], "SlotCache"]:
        """Hidden states of one token a slot, and the cache with it."""
        hidden_BD, layers = decode.decode_step(
            self.decoder, params, tokens_B, slots.positions_B, self.layers
        )
        return hidden_BD, dataclasses.replace(self, layers=layers)

    def up_to(self, position: Int[Array, ""]) -> "SlotCache":
        """Zeros from a position on, of one slot: no page's last owner is left there."""

        def cut(x: Array, dim: int) -> Array:
            is_kept = jnp.arange(x.shape[dim]) < position
            shape = [1] * x.ndim
            shape[dim] = x.shape[dim]
            return jnp.where(is_kept.reshape(shape), x, jnp.zeros((), x.dtype))

        return dataclasses.replace(self, layers=_by_length(self.layers, cut))

    def _map(self, function: Any, *others: "SlotCache") -> "SlotCache":
        layers = jax.tree.map(function, self.layers, *(o.layers for o in others))
        return dataclasses.replace(self, layers=layers)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("pool",),
    meta_fields=("decoder", "paging"),
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class PageCache:
    """Keys and values of all slots as pages; the host's `PageTable` says whose.

    It has the methods of `SlotCache`, with page numbers in the place of a slot's.

    Attributes:
      pool: what `model.paged` reads and writes.
      decoder: whose cache it is.
      paging: sizes of the pool.
    """

    pool: Any
    decoder: Decoder
    paging: Paging

    def read(self, rows_O: Int[Array, " O"]) -> SlotCache:
        """A cache of one slot, a copy."""

        def one_layer(pool: Any) -> decode.KeysValues:
            pages = paged.read_pages(self.decoder, self.paging, pool, rows_O)
            return paged.from_pages(self.decoder, self.paging, pages)

        return SlotCache(layers=self._layers(one_layer), decoder=self.decoder)

    def parts(self, one: SlotCache) -> Any:
        """One slot's pages."""
        if self.decoder.scan_layers:
            return paged.to_pages(self.decoder, self.paging, one.layers)
        return tuple(
            paged.to_pages(self.decoder, self.paging, layer) for layer in one.layers
        )

    def write(self, rows_O: Int[Array, " O"], parts: Any) -> "PageCache":
        """This cache with pages of a slot replaced, those behind its end by zeros."""

        def one_layer(pool: Any, pages: Any) -> Any:
            return paged.write_pages(self.decoder, self.paging, pool, rows_O, pages)

        return dataclasses.replace(self, pool=self._layers(one_layer, parts))

    def decode_step(
        self, params: Params, tokens_B: Int[Array, " B"], slots: SlotPages
    ) -> tuple[Float[Array, "B D"], "PageCache"]:
        """Hidden states of one token a slot, and the cache with it."""
        hidden_BD, pool = paged.decode_step(
            self.decoder, self.paging, params, tokens_B, slots, self.pool
        )
        return hidden_BD, dataclasses.replace(self, pool=pool)

    def _layers(self, function: Any, *others: Any) -> Any:
        if self.decoder.scan_layers:
            return function(self.pool, *others)
        return tuple(map(function, self.pool, *others))


Cache = SlotCache | PageCache


def empty(
    decoder: Decoder, num_slots: int, length: int, kv_dtype: str | None
) -> SlotCache:
    """Slots of zeros."""
    layers = decode.empty_cache(decoder, num_slots, length, kv_dtype)
    return SlotCache(layers=layers, decoder=decoder)


def empty_pages(decoder: Decoder, paging: Paging) -> PageCache:
    """Pages of zeros."""
    pool = paged.empty_pool(decoder, paging)
    return PageCache(pool=pool, decoder=decoder, paging=paging)


def padded(decoder: Decoder, layers: Any, length: int) -> SlotCache:
    """One slot of `length` positions from a prefill, zero behind it.

    An insert writes the whole slot, zeros too: nothing of the slot's last owner is
    left, not even a NaN that would pass through a zero attention weight.
    """

    def pad(part: Array, dim: int) -> Array:
        missing = [(0, 0)] * part.ndim
        missing[dim] = (0, length - part.shape[dim])
        return jnp.pad(part, missing)

    return SlotCache(layers=_by_length(layers, pad), decoder=decoder)


def _by_length(layers: Any, function: Any) -> Any:
    """`function(array, dim that counts positions)` of each array."""

    def one(layer: decode.KeysValues) -> decode.KeysValues:
        k, v = layer
        return decode.KeysValues(
            jax.tree.map(lambda x: function(x, x.ndim - 1), k),
            jax.tree.map(lambda x: function(x, x.ndim - 2), v),
        )

    if isinstance(layers, decode.KeysValues):
        return one(layers)
    return tuple(map(one, layers))
