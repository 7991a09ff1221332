"""A mixture of experts: every token goes to its k experts, and none is dropped."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Float, Int


class Experts(NamedTuple):
    """Weights of one layer's router and of its U experts, in the compute type."""

    router_DU: Float[Array, "D U"]
    gate_UDF: Float[Array, "U D F"]
    up_UDF: Float[Array, "U D F"]
    down_UFD: Float[Array, "U F D"]


def activate(decoder: Decoder, gate: Array) -> Array:
    """The gate's activation, of experts and of a dense MLP."""
    if decoder.activation == "silu":
        return jax.nn.silu(gate)
    return jax.nn.gelu(gate, approximate=True)


def route(
    decoder: Decoder, router_logits_AU: Float[Array, "A U"]
) -> tuple[Float[Array, "A J"], Int[Array, "A J"]]:
    """Share and index of the J = `experts_per_token` likeliest experts of A tokens.

    Source: Qwen3 technical report 2025, section 2; softmax before the choice.
    """
    probs_AU = jax.nn.softmax(router_logits_AU.astype(jnp.float32), axis=-1)
    shares_AJ, chosen_AJ = jax.lax.top_k(probs_AU, decoder.experts_per_token)
    if decoder.norm_topk_prob:
        shares_AJ = shares_AJ / jnp.sum(shares_AJ, axis=-1, keepdims=True)
    return shares_AJ, chosen_AJ


def mixture(
    decoder: Decoder,
    y_BTD: Float[Array, "B T D"],
    weights: Experts,
    *,
    precision: jax.lax.Precision,
) -> Float[Array, "B T D"]:
    """The sum of each token's experts by their shares.

    Tokens are sorted by expert, so that each expert multiplies one run of rows whatever
    its length: no capacity, and a token's result does not depend on the others.
    """
    y_AD = y_BTD.reshape(-1, y_BTD.shape[-1])
    router_logits_AU = jnp.matmul(y_AD, weights.router_DU, precision=precision)
    shares_AJ, chosen_AJ = route(decoder, router_logits_AU)
    chosen = chosen_AJ.reshape(-1)
    order = jnp.argsort(chosen, stable=True)
    multiply = functools.partial(
        jax.lax.ragged_dot,
        group_sizes=jnp.bincount(chosen, length=decoder.num_experts).astype(jnp.int32),
        precision=precision,
    )
    rows = y_AD[order // decoder.experts_per_token]
    gate = activate(decoder, multiply(rows, weights.gate_UDF))
    out = multiply(gate * multiply(rows, weights.up_UDF), weights.down_UFD)
    out_AJD = out[jnp.argsort(order)].reshape(*shares_AJ.shape, -1)
    out_AD = jnp.sum(out_AJD * shares_AJ.astype(out.dtype)[:, :, None], axis=1)
    return out_AD.reshape(y_BTD.shape)
