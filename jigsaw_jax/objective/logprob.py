"""Log-probability of the taken token and entropy of its distribution."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jigsaw_jax.types import Array, Float, Int

Head = Callable[[Array], Array]


def token_logprobs(
    logits_RMV: Float[Array, "R M V"],
    targets_RM: Int[Array, "R M"],
    temperature: float | Array,
) -> tuple[Float[Array, "R M"], Float[Array, "R M"]]:
    """Logprobs of the targets and entropies in nats, both at `temperature`.

    The logits are divided by the temperature, not the logprobs, so the distribution
    is the one that was sampled from and sums to 1.
    """
    scaled_RMV = logits_RMV.astype(jnp.float32) / temperature
    top_RM1 = jax.lax.stop_gradient(jnp.max(scaled_RMV, axis=-1, keepdims=True))
    shifted_RMV = scaled_RMV - top_RM1
    exp_RMV = jnp.exp(shifted_RMV)
    total_RM = jnp.sum(exp_RMV, axis=-1)
    log_total_RM = jnp.log(total_RM)
    # A comparison instead of a gather: its transpose is no scatter, and it stays local
    # where the vocabulary is spread over devices.
    ids_RMV = jax.lax.broadcasted_iota(targets_RM.dtype, shifted_RMV.shape, 2)
    is_target_RMV = ids_RMV == targets_RM[..., None]
    chosen_RM = jnp.sum(jnp.where(is_target_RMV, shifted_RMV, 0), axis=-1)
    mean_RM = jnp.sum(exp_RMV * shifted_RMV, axis=-1) / total_RM
    return chosen_RM - log_total_RM, log_total_RM - mean_RM


def row_logprobs(
    logits_AV: Float[Array, "A V"],
    targets_A: Int[Array, " A"],
    temperatures_A: Float[Array, " A"],
) -> tuple[Float[Array, " A"], Float[Array, " A"]]:
    """`token_logprobs` of rows with a temperature each.

    The entropy is made from other copies of the logits: a caller that does without it
    gets logprobs of the same rounding.
    """

    def both(logits: Array) -> tuple[Array, Array]:
        return token_logprobs(
            logits[:, None], targets_A[:, None], temperatures_A[:, None, None]
        )

    logprobs_AM, _ = both(logits_AV)
    # What comes out of a barrier is not known to be what went in.
    logits_AV, logprobs_AM = jax.lax.optimization_barrier((logits_AV, logprobs_AM))
    _, entropies_AM = both(logits_AV)
    return logprobs_AM[:, 0], entropies_AM[:, 0]


def chunked_logprobs(
    head: Head,
    hidden_RMD: Float[Array, "R M D"],
    targets_RM: Int[Array, "R M"],
    *,
    temperature: float,
    chunk: int = 0,
) -> tuple[Float[Array, "R M"], Float[Array, "R M"]]:
    """`token_logprobs` of `head(hidden)`, with few logits alive at once.

    Args:
      head: hidden states `[..., D]` to logits `[..., V]`.
      hidden_RMD: states that predict the targets.
      targets_RM: the tokens that were taken.
      temperature: of the distribution.
      chunk: tokens whose logits exist at once, in the backward pass too (they are
        computed again there); 0 is all. Whole columns of R tokens are taken, so that
        rows stay where they are on the mesh: at least R tokens.

    Returns:
      Logprobs and entropies.
    """
    num_rows, num_columns = targets_RM.shape
    columns = max(chunk // num_rows, 1)
    if not chunk or columns >= num_columns:
        return token_logprobs(head(hidden_RMD), targets_RM, temperature)
    num_chunks = -(-num_columns // columns)
    pad = num_chunks * columns - num_columns

    def split(x: Array) -> Array:
        """`[R, M, ...]` to `[chunks, R, columns, ...]`."""
        x = jnp.pad(x, [(0, 0), (0, pad)] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(num_rows, num_chunks, columns, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0)

    @jax.checkpoint
    def one(part: tuple[Array, Array]) -> tuple[Array, Array]:
        return token_logprobs(head(part[0]), part[1], temperature)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(num_rows, -1)[:, :num_columns]

    logprobs, entropies = jax.lax.map(one, (split(hidden_RMD), split(targets_RM)))
    return join(logprobs), join(entropies)
