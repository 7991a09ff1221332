"""From a loss a token to a (sum, weight) pair that is divided once an update."""

import jax.numpy as jnp

from jigsaw_jax.objective import sequence
from jigsaw_jax.types import Array, Bool, Float, Int


def token_weights(
    kind: str,
    *,
    mask_RM: Bool[Array, "R M"],
    sequence_ids_RM: Int[Array, "R M"],
    norm_tokens: int,
) -> tuple[Float[Array, "R M"], Float[Array, ""]]:
    """What to multiply each token's loss by before summing, and the sum's weight.

    Sums and weights of all micro-batches add up, and the update divides one by the
    other: no mean of means. A sequence without trained tokens adds to neither.

      token-mean: 1; trained tokens.
      seq-mean-token-mean: 1 / the sequence's trained tokens; sequences.
      seq-mean-token-sum: 1; sequences.
      seq-mean-token-sum-norm: 1 / norm_tokens; sequences.

    Source: DAPO section 3.3 (token-mean); DeepSeekMath (seq-mean-token-mean);
    Understanding R1-Zero-Like Training (the constant norm).
    """
    ones_RM = mask_RM.astype(jnp.float32)
    if kind == "token-mean":
        return ones_RM, jnp.sum(ones_RM)
    num_sequences = sequence.count_sequences(sequence_ids_RM, mask_RM)
    if kind == "seq-mean-token-sum":
        return ones_RM, num_sequences
    if kind == "seq-mean-token-sum-norm":
        return ones_RM / norm_tokens, num_sequences
    assert kind == "seq-mean-token-mean", kind
    lengths_RM = sequence.sequence_lengths(sequence_ids_RM, mask_RM)
    return ones_RM / lengths_RM, num_sequences
