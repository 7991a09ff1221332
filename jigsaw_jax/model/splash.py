"""Packed rows through JAX's Pallas kernel for TPUs, splash attention.

The kernel never has a row's scores in memory, skips blocks that its mask leaves empty,
and reads each key-value head once for its group of query heads. It knows causality and
windows by themselves, and of segments only whether two are equal. Where a segment also
sees its prompt's, the mask is an array, one bool for each pair of a row's tokens, that
is cut into blocks once for all layers.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as kernel,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as masks,
)

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import attention
from jigsaw_jax.model.layer import score_options
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Int

# The kernel's smallest block; rows are multiples of it.
LANES = 128
# The largest: as the TPU compiler schedules a v5e, 512 x 512 scores take 1,211 cycles
# beside products of 1,024; smaller blocks pay 270 cycles of control more often.
BLOCK_MAX = 512
# Rows up to this length have all their keys in one column of blocks in the backward
# pass, and one kernel then computes all gradients. With more columns each would write
# its part of the query's, and adding those up costs more than a second kernel.
COLUMN_MAX = 1024
# The name of the kernel's output and log-sum-exp, for a policy of rematerialisation.
RESIDUAL = "attention"

_QUERY = ("rows", None, "heads", None)
_KEYS = ("rows", None, "kv_heads", None)


def of_rows(
    decoder: Decoder,
    segment_ids_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    prefix_ids_BT: Int[Array, "B T"] | None,
    window: int | None,
) -> Callable[[Array, Array, Array], Array]:
    """Attention of the rows; see `self_attention.of_rows`.

    Args:
      decoder: the policy's shape.
      segment_ids_BT: of each token; T is a multiple of `LANES`.
      positions_BT: of each token in its sequence.
      prefix_ids_BT: a segment that each token sees beside its own, or None.
      window: tokens that each token sees, or None.

    Returns:
      The map from queries B T N H, keys and values B T K H to the output.

    Raises:
      ValueError: T is not a multiple of `LANES`.
    """
    length = segment_ids_BT.shape[1]
    if length % LANES:
        raise ValueError(
            f"tokens of a row must be a multiple of {LANES} for the attention kernel, "
            f"got {length}; set Decoder.attention to 'einsum' or 'auto'"
        )
    if prefix_ids_BT is None:
        compute = functools.partial(_static, decoder, window)
        shared = segment_ids_BT
    else:
        compute = functools.partial(_dynamic, decoder)
        mask_BTT = attention.packed_mask(
            segment_ids_BT, positions_BT, window, prefix_ids_BT
        )
        shared = jax.vmap(functools.partial(_kernel, decoder))(mask_BTT[:, None])

    def attend(q: Array, k: Array, v: Array) -> Array:
        return _over_mesh(compute, q, k, v, shared)

    return attend


def blocks(length: int) -> kernel.BlockSizes:
    """Sizes of the kernel's blocks for rows of `length` tokens."""
    size = next(x for x in (BLOCK_MAX, 256, LANES) if length % x == 0)
    is_fused = length <= COLUMN_MAX
    return kernel.BlockSizes(
        block_q=size,
        block_kv=size,
        block_q_dkv=size,
        block_kv_dkv=length if is_fused else size,
        block_kv_dkv_compute=size,
        block_q_dq=None if is_fused else size,
        block_kv_dq=None if is_fused else size,
        use_fused_bwd_kernel=is_fused,
    )


def _over_mesh(compute: Any, q: Array, k: Array, v: Array, shared: Any) -> Array:
    """`compute` on each device's rows and heads; the compiler can't cut a kernel up."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return compute(q, k, v, shared)
    of_query, of_keys, of_rows = (
        meshes.partition_spec(mesh, names, shape)
        for names, shape in ((_QUERY, q.shape), (_KEYS, k.shape), (("rows",), q.shape))
    )
    return jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=(of_query, of_keys, of_keys, of_rows),
        out_specs=of_query,
        # The kernel does not say how its outputs vary over the mesh.
        check_vma=False,
    )(q, k, v, shared)


def _static(
    decoder: Decoder,
    window: int | None,
    q: Array,
    k: Array,
    v: Array,
    segment_ids_BT: Int[Array, "B T"],
) -> Array:
    length = segment_ids_BT.shape[1]
    square = (length, length)
    mask = masks.CausalMask(square)
    if window is not None:
        mask = masks.LocalMask(square, (window - 1, 0), 0)
    one = _kernel(decoder, masks.MultiHeadMask([mask]))

    def of_row(q: Array, k: Array, v: Array, ids: Array) -> Any:
        return one(q, k, v, kernel.SegmentIds(ids, ids))

    return _by_row(decoder, of_row, q, k, v, segment_ids_BT)


def _dynamic(decoder: Decoder, q: Array, k: Array, v: Array, kernels: Any) -> Array:
    def of_row(q: Array, k: Array, v: Array, one: Any) -> Array:
        return one(q, k, v)

    return _by_row(decoder, of_row, q, k, v, kernels)


def _by_row(
    decoder: Decoder, of_row: Any, q: Array, k: Array, v: Array, shared: Any
) -> Array:
    """`of_row` of every row, whose arrays have the dims N T H and K T H."""
    scaled = (q.astype(jnp.float32) * score_options(decoder)["scale"]).astype(q.dtype)
    heads_first = (x.swapaxes(1, 2) for x in (scaled, k, v))
    return jax.vmap(of_row)(*heads_first, shared).swapaxes(1, 2)


def _kernel(decoder: Decoder, mask: Any) -> kernel.SplashAttentionKernel:
    """The kernel for one mask of all heads."""
    made = kernel.make_splash_mha(
        mask,
        block_sizes=blocks(mask.shape[-1]),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=decoder.attention_soft_cap,
        residual_checkpoint_name=RESIDUAL,
        interpret=meshes.platform() != "tpu",
    )
    return kernel.SplashAttentionKernel(
        _plain(made.fwd_mask_info),
        made.dq_mask_info and _plain(made.dq_mask_info),
        made.dkv_mask_info and _plain(made.dkv_mask_info),
        **made.kwargs,
    )


def _plain(info: Any) -> Any:
    """Without the note that its mask is dynamic: read as a bool, but traced here."""
    return info._replace(is_dynamic_mask=None)
