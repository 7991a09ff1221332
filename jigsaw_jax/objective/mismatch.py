"""Difference between sampler and learner under equal weights, and its correction."""

import jax
import jax.numpy as jnp

from jigsaw_jax.objective.ratio import log_difference
from jigsaw_jax.types import Array, Bool, Float


def correction_weights(
    kind: str,
    learner_logprobs_RM: Float[Array, "R M"],
    sampler_logprobs_RM: Float[Array, "R M"],
    *,
    mask_RM: Bool[Array, "R M"],
    weight_max: float,
) -> Float[Array, "R M"]:
    """Importance weights from the sampler's distribution to the learner's, stopped.

    w = exp(learner - sampler) at equal weights of the model. "truncate" takes
    min(w, weight_max), "mask" takes w where 1 / weight_max <= w <= weight_max and 0
    elsewhere. They multiply the loss of a token, never its weight in a denominator:
    the tokens that were drawn stay the ones that are averaged over.

    Source: Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL
    Training (truncate); IcePop, in Ling-Team 2025 (mask).
    """
    weight_RM = jnp.exp(
        log_difference(learner_logprobs_RM, sampler_logprobs_RM, mask_RM)
    )
    if kind == "mask":
        is_near_RM = (weight_RM <= weight_max) & (weight_RM * weight_max >= 1)
        return jax.lax.stop_gradient(jnp.where(is_near_RM, weight_RM, 0))
    assert kind == "truncate", kind
    return jax.lax.stop_gradient(jnp.minimum(weight_RM, weight_max))


def mismatch_sums(
    learner_logprobs_RM: Float[Array, "R M"],
    sampler_logprobs_RM: Float[Array, "R M"],
    is_equal_version_RM: Bool[Array, "R M"],
) -> dict[str, Float[Array, ""]]:
    """Sums over the tokens that both sides saw under the same weights.

    Returns "count", "abs" (of the log-difference), "abs_max" and "weight".
    """
    difference_RM = log_difference(
        jax.lax.stop_gradient(learner_logprobs_RM),
        sampler_logprobs_RM,
        is_equal_version_RM,
    )
    weight_RM = jnp.where(is_equal_version_RM, jnp.exp(difference_RM), 0)
    return {
        "count": jnp.sum(is_equal_version_RM, dtype=jnp.float32),
        "abs": jnp.sum(jnp.abs(difference_RM)),
        "abs_max": jnp.max(jnp.abs(difference_RM)),
        "weight": jnp.sum(weight_RM),
    }
