"""The policy's probability of a token, relative to that of the old policy."""

import jax
import jax.numpy as jnp

from jigsaw_jax.objective import sequence
from jigsaw_jax.types import Array, Bool, Float, Int

# Beyond it exp would soon overflow float32 and meet a zero advantage as inf * 0. The
# gradient through a ratio stops there.
LOG_RATIO_MAX = 20.0


def log_difference(
    logprobs_RM: Float[Array, "R M"],
    other_RM: Float[Array, "R M"],
    mask_RM: Bool[Array, "R M"],
) -> Float[Array, "R M"]:
    """`logprobs - other`, bounded, and 0 with zero gradient where masked.

    Masked before any exp, and on the inputs: a NaN or inf under the mask would
    otherwise reach the gradient through 0 * inf although the value is masked.
    """
    difference_RM = jnp.where(mask_RM, logprobs_RM, 0) - jnp.where(mask_RM, other_RM, 0)
    return jnp.clip(difference_RM, -LOG_RATIO_MAX, LOG_RATIO_MAX)


def importance_ratio(
    kind: str,
    logprobs_RM: Float[Array, "R M"],
    old_logprobs_RM: Float[Array, "R M"],
    *,
    mask_RM: Bool[Array, "R M"],
    sequence_ids_RM: Int[Array, "R M"],
) -> Float[Array, "R M"]:
    """The importance ratio of each token, 1 where masked.

    token: exp(logp - old).
    sequence: s = exp(mean over the sequence's trained tokens of logp - old), written
      at each token as sg(s) * exp(logp - sg(logp)). Its value is s everywhere; its
      gradient at a token is s * d logp of that token. Summed over the sequence with
      equal weights that is GSPO's gradient, |o| times the gradient of s.

    Source: PPO (token); Group Sequence Policy Optimization, section 4.3 (sequence).
    """
    log_ratio_RM = log_difference(logprobs_RM, old_logprobs_RM, mask_RM)
    if kind == "sequence":
        sums_RM = sequence.sequence_sums(log_ratio_RM, sequence_ids_RM, mask_RM)
        mean_RM = sums_RM / sequence.sequence_lengths(sequence_ids_RM, mask_RM)
        own_RM = jnp.where(mask_RM, logprobs_RM, 0)
        log_ratio_RM = jax.lax.stop_gradient(mean_RM) + (
            own_RM - jax.lax.stop_gradient(own_RM)
        )
    return jnp.exp(log_ratio_RM)
