"""Policy-gradient losses of a token, given its ratio and advantage."""

import dataclasses

import jax
import jax.numpy as jnp

from jigsaw_jax.settings import Objective
from jigsaw_jax.types import Array, Bool, Float


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Surrogate:
    """A loss a token and where clipping changed it.

    loss_RM: to be minimised.
    is_clipped_low_RM: clipped at 1 - clip_low.
    is_clipped_high_RM: clipped at 1 + clip_high.
    """

    loss_RM: Float[Array, "R M"]
    is_clipped_low_RM: Bool[Array, "R M"]
    is_clipped_high_RM: Bool[Array, "R M"]


def ppo(
    objective: Objective,
    ratio_RM: Float[Array, "R M"],
    advantages_RM: Float[Array, "R M"],
) -> Surrogate:
    """Clipped surrogate, -min(r A, clip(r, 1 - low, 1 + high) A).

    Only a step that has already gone far enough is clipped: up for positive and down
    for negative advantages. With `dual_clip` = c the loss of a negative advantage is
    at most -c A. A clipped token has no gradient.

    Source: PPO; DAPO section 3.1 (two bounds); Ye et al. 2020 (dual clip).
    """
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    is_low_RM = (advantages_RM < 0) & (ratio_RM < low)
    is_high_RM = (advantages_RM > 0) & (ratio_RM > high)
    clipped_RM = jnp.where(is_low_RM, low, jnp.where(is_high_RM, high, ratio_RM))
    if objective.dual_clip is not None:
        is_dual_RM = (advantages_RM < 0) & (ratio_RM > objective.dual_clip)
        clipped_RM = jnp.where(is_dual_RM, objective.dual_clip, clipped_RM)
    return Surrogate(
        loss_RM=-clipped_RM * advantages_RM,
        is_clipped_low_RM=is_low_RM,
        is_clipped_high_RM=is_high_RM,
    )


def cispo(
    objective: Objective,
    ratio_RM: Float[Array, "R M"],
    advantages_RM: Float[Array, "R M"],
    *,
    logprobs_RM: Float[Array, "R M"],
) -> Surrogate:
    """Clipped importance weight on the log-probability, -sg(w) A logp.

    w = clip(r, 1 - clip_low, 1 + clip_high): the settings are distances from 1, not
    bounds. The paper's upper bound of 5 without a lower one is clip_low 1, clip_high 4
    (a ratio of 0.5 then weighs 0.5 and one of 10 weighs 5). Clipped tokens keep a
    gradient, d loss / d logp = -w A. `logprobs_RM` must be finite where masked.

    Source: MiniMax-M1, section 3.1.
    """
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    weight_RM = jax.lax.stop_gradient(jnp.clip(ratio_RM, low, high))
    return Surrogate(
        loss_RM=-weight_RM * advantages_RM * logprobs_RM,
        is_clipped_low_RM=ratio_RM < low,
        is_clipped_high_RM=ratio_RM > high,
    )
