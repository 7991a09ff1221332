"""Sums over the trained tokens of each sequence of packed rows.

A sequence never spans rows, so none of these look across them: the result does not
depend on how sequences were packed or split over devices.
"""

import jax
import jax.numpy as jnp

from jigsaw_jax.types import Array, Bool, Float, Int


def sequence_sums(
    values_RM: Float[Array, "R M"],
    sequence_ids_RM: Int[Array, "R M"],
    mask_RM: Bool[Array, "R M"],
) -> Float[Array, "R M"]:
    """At each trained token the sum over its sequence; 0 where the mask is not set.

    Sequences of a row are numbered from 1 to at most M.
    """
    ids_RM = jnp.where(mask_RM, sequence_ids_RM, 0)
    values_RM = jnp.where(mask_RM, values_RM, 0)
    totals_RM = jax.vmap(_totals)(values_RM, ids_RM)
    sums_RM = jnp.take_along_axis(totals_RM, ids_RM, axis=1)
    return jnp.where(mask_RM, sums_RM, 0)


def sequence_lengths(
    sequence_ids_RM: Int[Array, "R M"], mask_RM: Bool[Array, "R M"]
) -> Float[Array, "R M"]:
    """Trained tokens of the sequence that each token belongs to, and 1 where masked."""
    ones_RM = jnp.ones(mask_RM.shape, jnp.float32)
    return jnp.maximum(sequence_sums(ones_RM, sequence_ids_RM, mask_RM), 1)


def count_sequences(
    sequence_ids_RM: Int[Array, "R M"], mask_RM: Bool[Array, "R M"]
) -> Float[Array, ""]:
    """How many sequences have a trained token."""
    ids_RM = jnp.where(mask_RM, sequence_ids_RM, 0)
    totals_RM = jax.vmap(_totals)(mask_RM.astype(jnp.float32), ids_RM)
    return jnp.sum(totals_RM > 0, dtype=jnp.float32)


def _totals(values_M: Float[Array, " M"], ids_M: Int[Array, " M"]) -> Array:
    """Total of each id, 0 to M."""
    return jax.ops.segment_sum(values_M, ids_M, num_segments=ids_M.shape[0] + 1)
