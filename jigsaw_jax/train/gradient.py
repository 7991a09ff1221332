"""Pure programs of the learner: gradient sums of a batch, and the step they end in."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jigsaw_jax import settings
from jigsaw_jax.model import canonical
from jigsaw_jax.model import decoder as model
from jigsaw_jax.model.tiles import by_tile
from jigsaw_jax.objective import logprob, mismatch, overlong, policy
from jigsaw_jax.objective.advantage import advantages
from jigsaw_jax.train import optimizer
from jigsaw_jax.train.packing import Batch
from jigsaw_jax.types import Array, Float, Int, Params

# Gradient sums under "gradients", and scalar sums by name. All add up over batches,
# but for the maximum.
Totals = dict[str, Any]
MAXIMUM = "mismatch_abs_max"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Policies:
    """Weights that log-probabilities are taken under, beside those that train.

    round: of the round's version where the old policy is recomputed and the current
        weights are no longer these, else None.
    reference: of KL, or None.
    frozen: leaves that all of them share; empty where all weights train.
    """

    round: Params
    reference: Params
    frozen: Params = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewards:
    """Of all groups that an advantage is relative to.

    rewards_PG: NaN where missing.
    lengths_PG: sampled tokens.
    kl_PG: to take off, where KL is in the reward.
    version: whose tokens the mismatch is measured on.
    """

    rewards_PG: Float[Any, "P G"]
    lengths_PG: Int[Any, "P G"]
    kl_PG: Float[Any, "P G"]
    version: Int[Any, ""]


def token_logprobs(
    train: settings.Train, params: Params, batch: Batch, temperature: float
) -> tuple[Float[Array, "R M"], Float[Array, "R M"]]:
    """Logprobs and entropies at the trained places under `params`."""
    if train.decoder.canonical_tile:
        return _canonical_logprobs(train, params, batch, temperature)
    return _plain_logprobs(train, params, batch, temperature)


def _plain_logprobs(
    train: settings.Train, params: Params, batch: Batch, temperature: float
) -> tuple[Float[Array, "R M"], Float[Array, "R M"]]:
    """In the shapes of a learner, where no sampler's logprobs are to be met."""
    decoder = dataclasses.replace(train.decoder, canonical_tile=0)
    hidden_RMD = _hidden(train, model.forward, decoder, params, batch)
    return logprob.chunked_logprobs(
        model.head(decoder, params),
        hidden_RMD,
        batch.targets_RM,
        temperature=temperature,
        chunk=train.learner.logprob_chunk,
    )


def _canonical_logprobs(
    train: settings.Train, params: Params, batch: Batch, temperature: float
) -> tuple[Float[Array, "R M"], Float[Array, "R M"]]:
    """`token_logprobs` by tiles of tokens, in the sampler's shapes."""
    decoder = train.decoder
    forward = functools.partial(canonical.forward, length=train.sampler.length_max)
    hidden_RMD = _hidden(train, forward, decoder, params, batch)
    shape = batch.targets_RM.shape

    def one(weights: Params, hidden: Array, targets: Array, temperatures: Array) -> Any:
        # The sampler draws between the two: a barrier keeps them as far apart here.
        logits = model.ends(decoder, {"ends": weights}).logits(hidden)
        logits = jax.lax.optimization_barrier(logits)
        return logprob.row_logprobs(logits, targets, temperatures)

    pair = by_tile(
        decoder,
        one,
        params["ends"],
        hidden_RMD.reshape(-1, decoder.model_dim),
        batch.targets_RM.ravel(),
        jnp.full(batch.targets_RM.size, temperature, jnp.float32),
        width=decoder.vocab_size,
    )
    return tuple(x.reshape(shape) for x in pair)


def _hidden(
    train: settings.Train,
    forward: Callable[..., Array],
    decoder: settings.Decoder,
    params: Params,
    batch: Batch,
) -> Float[Array, "R M D"]:
    """Normalised hidden states that predict the trained tokens."""
    hidden_RTD = forward(
        decoder,
        params,
        batch.tokens_RT,
        batch.positions_RT,
        batch.segment_ids_RT,
        prefix_ids_BT=batch.prefix_ids_RT,
        remat=train.learner.remat_save if train.learner.remat else None,
    )
    return jnp.take_along_axis(hidden_RTD, batch.index_RM[:, :, None], axis=1)


def add_policy_gradients(
    train: settings.Train,
    params: Params,
    policies: Policies,
    totals: Totals,
    *,
    batch: Batch,
    rewards: Rewards,
) -> Totals:
    """Totals with those of the batch added; `params` are the leaves that train."""
    objective, frozen = train.objective, policies.frozen
    old_RM = _stopped_logprobs(train, policies.round, frozen, batch)
    reference_RM = _stopped_logprobs(train, policies.reference, frozen, batch)
    advantages_RM = shaped_advantages(train, rewards).ravel()[batch.places_RM]

    def loss(params: Params) -> tuple[Array, Totals]:
        logprobs_RM, entropies_RM = token_logprobs(
            train, {**frozen, **params}, batch, train.sampler.temperature
        )
        own_RM = jax.lax.stop_gradient(logprobs_RM)
        learner_RM = own_RM if old_RM is None else old_RM
        is_recomputed = objective.old_policy == "recompute"
        tokens = policy.Tokens(
            logprobs_RM=logprobs_RM,
            entropies_RM=entropies_RM,
            old_logprobs_RM=learner_RM if is_recomputed else batch.logprobs_RM,
            sampler_logprobs_RM=batch.logprobs_RM,
            reference_logprobs_RM=reference_RM,
            advantages_RM=advantages_RM,
            sequence_ids_RM=batch.sequence_ids_RM,
            mask_RM=batch.mask_RM,
        )
        norm_tokens = objective.norm_tokens or train.sampler.new_tokens_max
        total, weight, sums = policy.policy_loss(
            objective, tokens, norm_tokens=norm_tokens
        )
        is_equal_RM = batch.mask_RM & (batch.versions_RM == rewards.version)
        seen = mismatch.mismatch_sums(learner_RM, batch.logprobs_RM, is_equal_RM)
        sums |= {f"mismatch_{name}": value for name, value in seen.items()}
        return total, {**sums, "loss": jax.lax.stop_gradient(total), "weight": weight}

    return _add(totals, *jax.grad(loss, has_aux=True)(params))


def shaped_advantages(train: settings.Train, rewards: Rewards) -> Float[Array, "P G"]:
    """Advantages of the rewards less their KL and the penalty on length."""
    objective = train.objective
    shaped_PG = rewards.rewards_PG - rewards.kl_PG
    shaped_PG += overlong.overlong_reward(
        rewards.lengths_PG,
        train.sampler.new_tokens_max,
        buffer=objective.overlong_buffer,
        penalty=objective.overlong_penalty,
    )
    return advantages(objective.advantage, shaped_PG)


def add_supervised_gradients(
    train: settings.Train,
    params: Params,
    totals: Totals,
    batch: Batch,
    *,
    frozen: Params,
) -> Totals:
    """Totals with the batch's negative log-likelihood added, at temperature 1."""

    def loss(params: Params) -> tuple[Array, Totals]:
        logprobs_RM, _ = _plain_logprobs(train, {**frozen, **params}, batch, 1.0)
        total = -jnp.sum(jnp.where(batch.mask_RM, logprobs_RM, 0))
        count = jnp.sum(batch.mask_RM, dtype=jnp.float32)
        stopped = jax.lax.stop_gradient(total)
        return total, {"loss": stopped, "weight": count, "tokens": count}

    return _add(totals, *jax.grad(loss, has_aux=True)(params))


def add_reward_kl(
    train: settings.Train,
    policies: Policies,
    kl_PG: Float[Array, "P G"],
    batch: Batch,
) -> Float[Array, "P G"]:
    """Adds what the batch's tokens take off the reward of their completions."""
    frozen = policies.frozen
    reference_RM = _stopped_logprobs(train, policies.reference, frozen, batch)
    old_RM = _stopped_logprobs(train, policies.round, frozen, batch)
    assert reference_RM is not None
    kl_RM = policy.reward_kl(
        train.objective,
        batch.logprobs_RM if old_RM is None else old_RM,
        reference_RM,
        mask_RM=batch.mask_RM,
    )
    flat = kl_PG.ravel().at[batch.places_RM].add(kl_RM)
    return flat.reshape(kl_PG.shape)


def zero_totals(params: Params, names: tuple[str, ...]) -> Totals:
    """Totals of nothing; gradients are summed in float32."""
    gradients = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
    return {"gradients": gradients} | {name: jnp.zeros(()) for name in names}


def step(
    transform: optax.GradientTransformation,
    params: Params,
    opt_state: Any,
    totals: Totals,
    rate: Float[Array, ""],
) -> tuple[Params, Any, Totals, dict[str, Array]]:
    """Divide once and step.

    Returns params, optimizer state, zero totals for the next update, and the scalar
    totals of this one with the norm of its gradient (before clipping).
    """
    scalars = {name: x for name, x in totals.items() if name != "gradients"}
    gradients = jax.tree.map(lambda x: x / totals["weight"], totals["gradients"])
    scalars["grad_norm"] = optax.tree.norm(gradients)
    zeros = jax.tree.map(jnp.zeros_like, totals)
    params, opt_state = optimizer.apply(
        transform, params, opt_state, gradients=gradients, rate=rate
    )
    return params, opt_state, zeros, scalars


def _stopped_logprobs(
    train: settings.Train, params: Params, frozen: Params, batch: Batch
) -> Float[Array, "R M"] | None:
    if params is None:
        return None
    whole = {**frozen, **params}
    logprobs_RM, _ = token_logprobs(train, whole, batch, train.sampler.temperature)
    return jax.lax.stop_gradient(logprobs_RM)


def _add(totals: Totals, gradients: Params, sums: Totals) -> Totals:
    added = dict(totals)
    added["gradients"] = jax.tree.map(
        lambda total, x: total + x.astype(jnp.float32), totals["gradients"], gradients
    )
    for name, value in sums.items():
        join = jnp.maximum if name == MAXIMUM else jnp.add
        added[name] = join(totals[name], value)
    return added
