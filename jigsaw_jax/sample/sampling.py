"""Drawing one token a slot, with the logprob it was really drawn with.

Each slot has its own temperature, top-k, top-p and key. One uniform a token comes from
a threefry counter (the key's two words, the token's absolute position), and is turned
into a token by the inverse of the cumulative distribution. So a token depends on its
key, its position and its logits, and on nothing else that happens in the batch.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from jigsaw_jax.types import Array, Bool, Float, Int, UInt32


class Draw(NamedTuple):
    """One token a slot.

    tokens_B: token ids.
    logprobs_B: of each under the distribution it was drawn from: temperature applied,
        renormalised over the kept set. A greedy token's is that of temperature 1
        without a filter, since its own distribution is a point.
    entropies_B: in nats, of the same distribution.
    """

    tokens_B: Int[Array, " B"]
    logprobs_B: Float[Array, " B"]
    entropies_B: Float[Array, " B"]


def uniforms(
    keys_BX: UInt32[Array, "B X"], positions_TB: Int[Array, "T B"]
) -> Float[Array, "T B"]:
    """A uniform in [0, 1), a multiple of 2^-24, for each slot and position."""
    counters = positions_TB.astype(jnp.uint32)
    words = [jnp.broadcast_to(keys_BX[None, :, i], counters.shape) for i in (0, 1)]
    bits, _ = threefry2x32_p.bind(*words, counters, jnp.zeros_like(counters))
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def draw(
    logits_BV: Float[Array, "B V"],
    uniforms_B: Float[Array, " B"],
    temperatures_B: Float[Array, " B"],
    top_ks_B: Int[Array, " B"],
    top_ps_B: Float[Array, " B"],
) -> Draw:
    """Draws by inverse CDF; temperature 0 takes the likeliest token (lowest id).

    top-k keeps the k likeliest tokens (0 or less keeps all), then top-p the smallest
    set of them whose renormalised mass is at least p; ties go to the lower id.
    """
    is_greedy_B = temperatures_B <= 0
    scale = jnp.where(is_greedy_B, 1.0, temperatures_B)
    scaled_BV = logits_BV / scale[:, None]
    is_filtered_B = ((top_ks_B > 0) | (top_ps_B < 1)) & ~is_greedy_B
    # The sort of the whole vocabulary is only paid when a slot asks for it. The rest
    # is the same program either way, so one slot's filter leaves others' bits alone.
    scaled_BV = jax.lax.cond(
        jnp.any(is_filtered_B),
        lambda x: jnp.where(
            _kept(x, top_ks_B, top_ps_B) | ~is_filtered_B[:, None], x, -jnp.inf
        ),
        lambda x: x,
        scaled_BV,
    )
    top_B = jnp.max(scaled_BV, axis=-1)
    shifted_BV = scaled_BV - top_B[:, None]
    mass_BV = jnp.exp(shifted_BV)
    total_B = jnp.sum(mass_BV, axis=-1)
    drawn_B = _invert(mass_BV, uniforms_B)
    greedy_B = _first(shifted_BV == 0)
    tokens_B = jnp.where(is_greedy_B, greedy_B, drawn_B)
    log_total_B = jnp.log(total_B)
    own = jnp.take_along_axis(shifted_BV, tokens_B[:, None], axis=-1)[:, 0]
    expected_B = jnp.sum(jnp.where(mass_BV > 0, mass_BV * shifted_BV, 0.0), axis=-1)
    return Draw(tokens_B, own - log_total_B, log_total_B - expected_B / total_B)


def _kept(
    scaled_BV: Float[Array, "B V"],
    top_ks_B: Int[Array, " B"],
    top_ps_B: Float[Array, " B"],
) -> Bool[Array, "B V"]:
    """The tokens that top-k, then top-p, keep."""
    order_BV = jnp.argsort(-scaled_BV, axis=-1, stable=True)
    ranks_BV = jnp.argsort(order_BV, axis=-1)
    sorted_BV = jnp.take_along_axis(scaled_BV, order_BV, axis=-1)
    places = jnp.arange(scaled_BV.shape[-1])[None]
    is_top_BV = (top_ks_B[:, None] <= 0) | (places < top_ks_B[:, None])
    sorted_BV = jnp.where(is_top_BV, sorted_BV, -jnp.inf)
    shares = jax.nn.softmax(sorted_BV, axis=-1)
    before = jnp.cumsum(shares, axis=-1) - shares
    is_in_BV = (before < top_ps_B[:, None]) | (top_ps_B[:, None] >= 1)
    is_kept_BV = is_top_BV & (is_in_BV | (places == 0))
    return jnp.take_along_axis(is_kept_BV, ranks_BV, axis=-1)


def _invert(
    mass_BV: Float[Array, "B V"], uniforms_B: Float[Array, " B"]
) -> Int[Array, " B"]:
    """The token at `uniform` of the cumulative mass; never one without mass.

    Two levels, blocks and then tokens in the block, each about sqrt(V) wide: a
    cumulative sum over the whole vocabulary would cost more than all else here.
    """
    b, v = mass_BV.shape
    width = 1 << max((v - 1).bit_length() + 1, 2) // 2
    padding = -v % width
    blocks = jnp.pad(mass_BV, ((0, 0), (0, padding))).reshape(b, -1, width)
    block_mass = jnp.sum(blocks, axis=-1)
    sums = _cumulative(block_mass)
    target_B = uniforms_B * sums[:, -1]
    block_B = _pick(block_mass, sums, target_B)
    chosen = block_B[:, None]
    before = jnp.take_along_axis(sums - block_mass, chosen, axis=1)[:, 0]
    tokens = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1)[:, 0]
    inner_B = _pick(tokens, _cumulative(tokens), target_B - before)
    return block_B * width + inner_B


def _cumulative(mass: Array) -> Array:
    """Inclusive cumulative sums of a short last dim, as a triangular product."""
    size = mass.shape[-1]
    ones = jnp.triu(jnp.ones((size, size), mass.dtype))
    return jnp.matmul(mass, ones, precision=jax.lax.Precision.HIGHEST)


def _pick(mass: Array, sums: Array, target: Array) -> Array:
    """First place with mass whose cumulative sum is above the target.

    Rounding can leave no such place; then it is the last place with mass.
    """
    has_mass = mass > 0
    first = _first(has_mass & (sums > target[:, None]))
    places = jnp.arange(mass.shape[-1])[None]
    last = jnp.max(jnp.where(has_mass, places, 0), axis=-1)
    return jnp.minimum(first, last)


def _first(flags: Array) -> Array:
    """The first true place of the last dim, or its size where there is none."""
    size = flags.shape[-1]
    return jnp.min(jnp.where(flags, jnp.arange(size)[None], size), axis=-1)
