"""The whole objective: its pieces composed as `settings.Objective` says."""

import dataclasses

import jax
import jax.numpy as jnp

from jigsaw_jax.objective import aggregation, kl, mismatch, ratio, surrogate
from jigsaw_jax.settings import Objective
from jigsaw_jax.types import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
    """The trained tokens of packed rows, M places a row.

    logprobs_RM: under the policy that is trained; the loss is differentiated by them.
    entropies_RM: of its distributions, in nats.
    old_logprobs_RM: under the old policy, the ratio's denominator.
    sampler_logprobs_RM: as the sampler reported them.
    reference_logprobs_RM: under the reference, or None where KL needs none.
    advantages_RM: of the completion that the token belongs to.
    sequence_ids_RM: 1 to M, numbering the sequences of a row.
    mask_RM: which places hold a trained token; what stands elsewhere has no effect.
    """

    logprobs_RM: Float[Array, "R M"]
    entropies_RM: Float[Array, "R M"]
    old_logprobs_RM: Float[Array, "R M"]
    sampler_logprobs_RM: Float[Array, "R M"]
    reference_logprobs_RM: Float[Array, "R M"] | None
    advantages_RM: Float[Array, "R M"]
    sequence_ids_RM: Int[Array, "R M"]
    mask_RM: Bool[Array, "R M"]


def policy_loss(
    objective: Objective, tokens: Tokens, *, norm_tokens: int
) -> tuple[Float[Array, ""], Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The unnormalised loss, its weight, and sums over tokens for the metrics.

    A token's loss is correction weight x surrogate + beta x KL - c x entropy; KL in
    the reward is the caller's (`reward_kl`). `norm_tokens` is the constant of
    "seq-mean-token-sum-norm".
    """
    mask_RM = tokens.mask_RM
    loss_RM, sums = _surrogate(objective, tokens)
    if objective.kl is not None:
        assert tokens.reference_logprobs_RM is not None
        from_reference_RM = ratio.log_difference(
            tokens.logprobs_RM, tokens.reference_logprobs_RM, mask_RM
        )
        kl_RM = kl.kl_loss(objective.kl, from_reference_RM)
        sums["kl_ref"] = jnp.sum(jax.lax.stop_gradient(kl_RM))
        if objective.kl_placement == "loss":
            loss_RM = loss_RM + objective.kl_coefficient * kl_RM
    entropies_RM = jnp.where(mask_RM, tokens.entropies_RM, 0)
    sums["entropy"] = jnp.sum(jax.lax.stop_gradient(entropies_RM))
    if objective.entropy_coefficient:
        loss_RM = loss_RM - objective.entropy_coefficient * entropies_RM
    weights_RM, weight = aggregation.token_weights(
        objective.aggregation,
        mask_RM=mask_RM,
        sequence_ids_RM=tokens.sequence_ids_RM,
        norm_tokens=norm_tokens,
    )
    # Every part of the loss is finite under the mask, where the weight is 0.
    return jnp.sum(weights_RM * loss_RM), weight, sums


def reward_kl(
    objective: Objective,
    old_logprobs_RM: Float[Array, "R M"],
    reference_logprobs_RM: Float[Array, "R M"],
    *,
    mask_RM: Bool[Array, "R M"],
) -> Float[Array, "R M"]:
    """What each token takes off its completion's reward: beta x KL of the old policy.

    Only trained tokens count, so an observation never moves a reward.
    """
    assert objective.kl is not None
    difference_RM = ratio.log_difference(
        old_logprobs_RM, reference_logprobs_RM, mask_RM
    )
    value_RM = kl.kl_value(objective.kl, difference_RM)
    return jax.lax.stop_gradient(objective.kl_coefficient * value_RM)


def _surrogate(
    objective: Objective, tokens: Tokens
) -> tuple[Float[Array, "R M"], dict[str, Float[Array, ""]]]:
    mask_RM = tokens.mask_RM
    advantages_RM = jnp.where(mask_RM, tokens.advantages_RM, 0)
    ratio_RM = ratio.importance_ratio(
        objective.ratio,
        tokens.logprobs_RM,
        tokens.old_logprobs_RM,
        mask_RM=mask_RM,
        sequence_ids_RM=tokens.sequence_ids_RM,
    )
    if objective.surrogate == "ppo":
        result = surrogate.ppo(objective, ratio_RM, advantages_RM)
    else:
        logprobs_RM = jnp.where(mask_RM, tokens.logprobs_RM, 0)
        result = surrogate.cispo(
            objective, ratio_RM, advantages_RM, logprobs_RM=logprobs_RM
        )
    loss_RM = result.loss_RM
    if objective.mismatch is not None:
        loss_RM = loss_RM * mismatch.correction_weights(
            objective.mismatch,
            tokens.old_logprobs_RM,
            tokens.sampler_logprobs_RM,
            mask_RM=mask_RM,
            weight_max=objective.mismatch_max,
        )
    behavior_RM = ratio.log_difference(
        tokens.sampler_logprobs_RM, tokens.logprobs_RM, mask_RM
    )
    low_RM, high_RM = result.is_clipped_low_RM, result.is_clipped_high_RM
    return loss_RM, {
        "tokens": jnp.sum(mask_RM, dtype=jnp.float32),
        "clip_low": jnp.sum(low_RM & mask_RM, dtype=jnp.float32),
        "clip_high": jnp.sum(high_RM & mask_RM, dtype=jnp.float32),
        # Drawn by the sampler, so k3 of sampler against policy: unbiased, never < 0.
        "kl_behavior": jnp.sum(jax.lax.stop_gradient(kl.kl_value("k3", behavior_RM))),
    }
