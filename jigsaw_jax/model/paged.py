"""A decode step over pages of keys and values, and a slot's way into pages and out.

    table of a slot   [ 7 | 3 | 9 | 0 ]      page 0 is never written: all zeros
                        │   │   │
    pages             places 0..I-1, I..2I-1, ...  of the slot's sequence

A pool holds the pages of all slots, `[Z, I, W, H]` a layer: the places of a page, and
keys and values of a head side by side, as JAX's ragged paged attention reads them. On
a mesh each device of "data" has the pages of its own slots, each of "tensor" its heads.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as ragged
from jax.sharding import PartitionSpec

from jigsaw_jax.model import attention, decode
from jigsaw_jax.model.attention import KeysValues
from jigsaw_jax.model.layer import choose, score_options
from jigsaw_jax.model.quantise import dequantise, like
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Bool, Float, Int, Params

# Tokens that the kernel reads at a time, and slots whose queries it holds. It always
# reads whole blocks, so a large one reads far behind a slot's end.
KERNEL_TOKENS, KERNEL_SLOTS = 256, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paging:
    """What is fixed about a pool.

    Attributes:
      page_size: I.
      length: positions of the longest sequence, in O pages.
      num_pages: Z, over all replicas, the zero page of each included.
      kv_dtype: None, or "int8".
      replicas: devices on "data"; each has a run of Z / replicas pages.
      tensor: devices on "tensor".
      kernel: attend by the TPU kernel rather than over gathered pages.
    """

    page_size: int
    length: int
    num_pages: int
    kv_dtype: str | None
    replicas: int
    tensor: int
    kernel: bool

    @property
    def pages_per_slot(self) -> int:
        """O."""
        return -(-self.length // self.page_size)


def cached_heads(num_kv_heads: int, tensor: int) -> int:
    """Key-value heads that a pool has: the model's, or each as often as it takes.

    Where `tensor` devices are a multiple of the heads, a head is repeated so that each
    device has one; where neither divides the other, every device has all of them.
    """
    return tensor if tensor % num_kv_heads == 0 else num_kv_heads


def has_kernel(
    decoder: Decoder, platform: str, kv_dtype: str | None, tensor: int = 1
) -> bool:
    """Whether JAX's TPU kernel can attend for this decoder.

    It multiplies bfloat16 whatever the type, and has no scale for each token. Mosaic
    compiles it for several heads on a device only where they are 128 wide.
    """
    is_alone = cached_heads(decoder.num_kv_heads, tensor) == tensor
    fits = decoder.head_dim % 128 == 0 and (is_alone or decoder.head_dim == 128)
    return platform == "tpu" and fits and decoder.dtype == "bfloat16" and not kv_dtype


def empty_pool(decoder: Decoder, paging: Paging) -> Any:
    """Pages of zeros: a pool a layer, or one stacked `[L, ...]`."""
    one_token = decode.empty_cache(decoder, 1, 1, paging.kv_dtype)

    def one_layer(layer: KeysValues) -> Any:
        page = to_pages(decoder, paging, layer)
        dim = page_dim(decoder)
        return jax.tree.map(
            lambda x: jnp.zeros(
                (*x.shape[:dim], paging.num_pages, *x.shape[dim + 1 :]), x.dtype
            ),
            page,
        )

    if decoder.scan_layers:
        return one_layer(one_token)
    return tuple(map(one_layer, one_token))


def page_dim(decoder: Decoder) -> int:
    """The dim of a layer's pool that counts pages; the last but one counts heads."""
    return 1 if decoder.scan_layers else 0


def to_pages(decoder: Decoder, paging: Paging, layer: KeysValues) -> Any:
    """One slot as pages `[..., O, I, W, H]`, zero behind its end."""
    heads = cached_heads(decoder.num_kv_heads, paging.tensor)
    times = heads // decoder.num_kv_heads

    def one(k: Array, v: Array) -> Array:
        # The dim of the one slot becomes that of the pages.
        k = jnp.moveaxis(k, -1, -3)
        v = jnp.moveaxis(v, -2, -3)
        both = interleave(jnp.repeat(k, times, -2), jnp.repeat(v, times, -2))
        lead, (length, *rest) = both.shape[:-4], both.shape[-3:]
        num_pages = -(-length // paging.page_size)
        missing = [(0, 0)] * both.ndim
        missing[-3] = (0, num_pages * paging.page_size - length)
        both = jnp.pad(both, missing)
        return both.reshape(*lead, num_pages, paging.page_size, *rest)

    return jax.tree.map(one, layer.k_BKHS, layer.v_BKSH)


def from_pages(decoder: Decoder, paging: Paging, pages: Any) -> KeysValues:
    """The keys and values of one slot, of `Paging.length` positions."""
    heads = cached_heads(decoder.num_kv_heads, paging.tensor)
    times = heads // decoder.num_kv_heads

    def one(part: int) -> Any:
        whole = jax.tree.map(lambda x: _joined(paging, x, part), pages)
        return jax.tree.map(lambda x: x[..., None, :, ::times, :], whole)

    return KeysValues(
        jax.tree.map(lambda k: jnp.moveaxis(k, -3, -1), one(0)),
        jax.tree.map(lambda v: jnp.moveaxis(v, -3, -2), one(1)),
    )


def interleave(k: Array, v: Array) -> Array:
    """`[..., K, H]` of keys and of values as `[..., W, H]`, a head's side by side."""
    both = jnp.stack([k, v], axis=-2)
    return both.reshape(*k.shape[:-2], 2 * k.shape[-2], k.shape[-1])


def _joined(paging: Paging, pages: Array, part: int) -> Array:
    """Keys (part 0) or values (1) of `[..., O, I, W, H]` as `[..., S, K, H]`."""
    *lead, num_pages, size, width, h = pages.shape
    flat = pages.reshape(*lead, num_pages * size, width // 2, 2, h)
    return flat[..., : paging.length, :, part, :]


def read_pages(
    decoder: Decoder, paging: Paging, pool: Any, rows_O: Int[Array, " O"]
) -> Any:
    """A copy of the pages of these numbers, of every layer."""
    dim = page_dim(decoder)

    def local(pool: Any, rows_O: Int[Array, " O"]) -> Any:
        own_O, is_own_O = _own(paging, rows_O)

        def one(x: Array) -> Array:
            found = jnp.take(x, jnp.where(is_own_O, own_O, 0), axis=dim)
            if paging.replicas == 1:
                return found
            is_own = is_own_O.reshape(*(1,) * dim, -1, 1, 1, 1)
            return jax.lax.psum(jnp.where(is_own, found, 0), "data")

        return jax.tree.map(one, pool)

    of_pool, of_pages = pool_spec(decoder, paging), pages_spec(decoder, paging)
    return _mapped(paging, local, (of_pool, PartitionSpec()), of_pages)(pool, rows_O)


def write_pages(
    decoder: Decoder,
    paging: Paging,
    pool: Any,
    rows_O: Int[Array, " O"],
    pages: Any,
) -> Any:
    """The pool with these pages in it; a number of Z and above is left out.

    Numbers behind the pages that there are get pages of zeros: nothing of a page's last
    owner is left, not even a NaN that would pass through a zero attention weight.
    """
    dim = page_dim(decoder)

    def local(pool: Any, rows_O: Int[Array, " O"], pages: Any) -> Any:
        own_O, is_own_O = _own(paging, rows_O)
        per_replica = paging.num_pages // paging.replicas
        own_O = jnp.where(is_own_O, own_O, per_replica)

        def one(x: Array, page: Array) -> Array:
            missing = [(0, 0)] * page.ndim
            missing[dim] = (0, rows_O.shape[0] - page.shape[dim])
            at = (*(slice(None),) * dim, own_O)
            return x.at[at].set(jnp.pad(page, missing), mode="drop")

        return jax.tree.map(one, pool, pages)

    of_pool, of_pages = pool_spec(decoder, paging), pages_spec(decoder, paging)
    specs = (of_pool, PartitionSpec(), of_pages)
    return _mapped(paging, local, specs, of_pool)(pool, rows_O, pages)


class SlotPages(NamedTuple):
    """Where the sequences of all slots lie.

    tables_BO: page numbers of each slot.
    positions_B: place of the token that is fed.
    running_B: a slot that does not run writes nothing, and what it reads is nothing.
    """

    tables_BO: Int[Array, "B O"]
    positions_B: Int[Array, " B"]
    running_B: Bool[Array, " B"]


def decode_step(
    decoder: Decoder,
    paging: Paging,
    params: Params,
    tokens_B: Int[Array, " B"],
    slots: SlotPages,
    pool: Any,
) -> tuple[Float[Array, "B D"], Any]:
    """Feeds one token to each slot; as `decode.decode_step`, over pages."""
    heads = cached_heads(decoder.num_kv_heads, paging.tensor)
    times = heads // decoder.num_kv_heads
    per_head = PartitionSpec("data", _heads_axis(decoder, paging), None)
    of_pool = pool_spec(decoder, paging)
    # The annotations of the record are those of arrays.
    of_slot: Any = PartitionSpec("data")
    of_slots = SlotPages(of_slot, of_slot, of_slot)
    specs = (PartitionSpec(), of_pool, of_slots, per_head, per_head, per_head)

    def attend(
        index: int | Array, old: Any, q: Array, k: Array, v: Array
    ) -> tuple[Array, Any]:
        k, v = (jnp.repeat(x[:, 0], times, axis=1) for x in (k, v))

        def local(at: Array, *args: Any) -> tuple[Array, Any]:
            layer = at if decoder.scan_layers else index
            return _write_and_attend(decoder, paging, layer, *args)

        at = jnp.asarray(index, jnp.int32)
        out, new = _mapped(paging, local, specs, (per_head, of_pool))(
            at, old, slots, q[:, 0], k, v
        )
        return out[:, None], new

    hidden_BTD, pool = decode.run(
        decoder, params, tokens_B[:, None], slots.positions_B[:, None], pool, attend
    )
    return hidden_BTD[:, 0], pool


def _write_and_attend(
    decoder: Decoder,
    paging: Paging,
    index: int | Array,
    pool: Any,
    slots: SlotPages,
    q_BNH: Float[Array, "B N H"],
    k_BKH: Float[Array, "B K H"],
    v_BKH: Float[Array, "B K H"],
) -> tuple[Float[Array, "B N H"], Any]:
    """One device's slots and heads, in one layer."""
    per_replica = paging.num_pages // paging.replicas
    tables_BO, _ = _own(paging, slots.tables_BO)
    # All layers' pages in one row: a slice of a layer would be a copy of its pages.
    first = index * per_replica if decoder.scan_layers else 0
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[-3:]), pool)
    at_BO = slots.positions_B[:, None] // paging.page_size
    page_B = jnp.take_along_axis(tables_BO, at_BO, axis=1, mode="clip")[:, 0]
    # A place that a scatter drops: the zero page is never written.
    nowhere = jax.tree.leaves(flat)[0].shape[0]
    page_B = jnp.where(slots.running_B & (page_B > 0), first + page_B, nowhere)
    place_B = slots.positions_B % paging.page_size
    token = like(pool, interleave(k_BKH, v_BKH), -1)
    flat = jax.tree.map(
        lambda x, y: x.at[page_B, place_B].set(y, mode="drop"), flat, token
    )
    tables_BO = first + tables_BO
    if paging.kernel:
        out_BNH = _by_kernel(decoder, index, flat, slots, tables_BO, q_BNH)
    else:
        out_BNH = _gathered(decoder, paging, index, flat, slots, tables_BO, q_BNH)
    return out_BNH, jax.tree.map(lambda x, y: x.reshape(y.shape), flat, pool)


def _gathered(
    decoder: Decoder,
    paging: Paging,
    index: int | Array,
    flat: Any,
    slots: SlotPages,
    tables_BO: Int[Array, "B O"],
    q_BNH: Float[Array, "B N H"],
) -> Float[Array, "B N H"]:
    """Attention over copies of the pages, summed as over a cache of slots."""
    pages = jax.tree.map(lambda x: x.at[tables_BO].get(mode="clip"), flat)
    k_BSKH, v_BSKH = (
        dequantise(
            jax.tree.map(lambda x, part=part: _joined(paging, x, part), pages),
            q_BNH.dtype,
        )
        for part in (0, 1)
    )
    positions_BT = slots.positions_B[:, None]
    mask_BTS = jnp.arange(paging.length)[None, None] <= positions_BT[:, :, None]
    masks = (mask_BTS, decode.windowed(decoder, mask_BTS, positions_BT))
    out_BTNH = attention.attend(
        q_BNH[:, None],
        *attention.as_cached(k_BSKH, v_BSKH),
        choose(decoder, index, *masks),
        **score_options(decoder),
    )
    return out_BTNH[:, 0]


def _by_kernel(
    decoder: Decoder,
    index: int | Array,
    pages_ZIWH: Float[Array, "Z I W H"],
    slots: SlotPages,
    tables_BO: Int[Array, "B O"],
    q_BNH: Float[Array, "B N H"],
) -> Float[Array, "B N H"]:
    """Attention that reads pages where they lie, up to each slot's end."""
    num_slots, num_pages = tables_BO.shape
    block = max(KERNEL_TOKENS // pages_ZIWH.shape[1], 1)
    options = score_options(decoder)
    # A slot that does not run reads one block.
    lengths_B = jnp.where(slots.running_B, slots.positions_B + 1, 1)

    def attend(window: int | None) -> Callable[[], Array]:
        return lambda: ragged.ragged_paged_attention(
            q_BNH,
            pages_ZIWH,
            lengths_B,
            tables_BO,
            jnp.arange(num_slots + 1, dtype=jnp.int32),
            jnp.full((1,), num_slots, jnp.int32),
            sm_scale=options["scale"],
            soft_cap=options["soft_cap"],
            sliding_window=window,
            num_kv_pages_per_block=min(block, num_pages),
            num_queries_per_block=min(KERNEL_SLOTS, num_slots),
        )

    is_global = decoder.is_global(index)
    if isinstance(is_global, bool):
        return attend(None if is_global else decoder.sliding_window)()
    return jax.lax.cond(is_global, attend(None), attend(decoder.sliding_window))


def pool_spec(decoder: Decoder, paging: Paging) -> PartitionSpec:
    """How a layer's pool, or the stack of them, lies on the mesh."""
    lead = (None,) * page_dim(decoder)
    return PartitionSpec(*lead, "data", None, _heads_axis(decoder, paging), None)


def pages_spec(decoder: Decoder, paging: Paging) -> PartitionSpec:
    """How one slot's pages lie: on each replica."""
    lead = (None,) * page_dim(decoder)
    return PartitionSpec(*lead, None, None, _heads_axis(decoder, paging), None)


def _heads_axis(decoder: Decoder, paging: Paging) -> str | None:
    heads = cached_heads(decoder.num_kv_heads, paging.tensor)
    return "tensor" if heads % paging.tensor == 0 else None


def _own(paging: Paging, numbers: Array) -> tuple[Array, Array]:
    """Page numbers within this device's replica, and which of them it has."""
    per_replica = paging.num_pages // paging.replicas
    if paging.replicas > 1:
        numbers = numbers - jax.lax.axis_index("data") * per_replica
    return numbers, (numbers >= 0) & (numbers < per_replica)


def _mapped(
    paging: Paging, local: Callable, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`local` on each device of the mesh of `mesh.on_mesh`."""
    if paging.replicas * paging.tensor == 1:
        return local
    return jax.shard_map(
        local,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=in_specs,
        out_specs=out_specs,
        # The kernel doesn't say how its output varies over devices.
        check_vma=False,
    )
