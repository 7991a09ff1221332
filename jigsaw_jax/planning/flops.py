"""Floating-point operations of a run's programs, by arithmetic on its settings.

A multiply-add counts as two; only matrix products count. "Model" operations are what
the mathematics needs: no recomputation, and of attention only the causal half.
"Program" operations are what the programs do: both halves, and what the backward pass
computes again.
"""

import dataclasses

import numpy as np

from jigsaw_jax.model import self_attention, splash
from jigsaw_jax.planning import pages
from jigsaw_jax.settings import Decoder, Train, sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """Of one run of a program, over all chips.

    Attributes:
      model: what the mathematics needs.
      program: what the program does.
      attention: the part of it that an attention kernel would do.
    """

    model: int | float
    program: int | float
    attention: int | float = 0


def gradient(train: Train, num_rows: int, *, platform: str = "cpu") -> Flops:
    """One micro-batch of full rows through forward and backward pass."""
    decoder, learner = train.decoder, train.learner
    tokens = num_rows * learner.row_tokens
    layers = 2 * tokens * layer_weights(decoder) * decoder.num_layers
    attention = attention_flops(decoder, num_rows, learner.row_tokens)
    head = 2 * num_rows * sizes.row_trained(train) * head_weights(decoder)
    # A backward pass costs two forward ones: by the input, and by the weight where
    # it trains.
    extra = _extra_forwards(train)
    passes = 3 + extra
    adapters = 2 * tokens * sizes.num_adapter_params(decoder)
    frozen = layers + head if adapters else 0
    if adapters and not decoder.scan_layers:
        # The embedding is frozen too, so the first layer hands no gradient down.
        heads = decoder.num_heads + 2 * decoder.num_kv_heads
        frozen += 2 * tokens * decoder.model_dim * heads * decoder.head_dim
    forward, backward = attention, 2 * attention
    is_kernel = self_attention.uses_kernel(decoder, learner.row_tokens, platform)
    if is_kernel:
        forward, backward = kernel_flops(decoder, num_rows, learner.row_tokens)
    again = 0.0
    saves = learner.remat_save != "nothing"
    is_again = learner.remat and not (is_kernel and saves)
    attended = (1 + extra + is_again) * forward + backward
    if learner.remat and not saves:
        again += layers + adapters
        if not decoder.sandwich_norms:
            # Nothing in the backward pass reads the layer's own last product.
            last = decoder.model_dim * decoder.hidden_dim
            again -= 2 * tokens * last * decoder.num_layers
    if _is_chunked(train, num_rows):
        again += head
    weights = passes * (layers + adapters + head) - frozen
    return Flops(
        model=weights + passes * attention / 2,
        program=weights + attended + again,
        attention=attended,
    )


def generate(train: Train) -> Flops:
    """One decode step of all slots, attending to what there is of a cache."""
    decoder, sampler = train.decoder, train.sampler
    weights = layer_weights(decoder) * decoder.num_layers + head_weights(decoder)
    weights += sizes.num_adapter_params(decoder)
    width = decoder.num_heads * decoder.head_dim
    attention = 4 * pages.mean_tokens(train) * width * decoder.num_layers
    total = float(sampler.slots * (2 * weights + attention))
    return Flops(model=total, program=total, attention=float(sampler.slots * attention))


def prefill(train: Train, *, platform: str = "cpu") -> Flops:
    """One prompt of the longest bucket; no logits."""
    decoder, tokens = train.decoder, train.sampler.prompt_buckets[-1]
    # Only keys and values are kept, so of the last layer nothing else is computed.
    whole = decoder.num_layers - 1
    last = 2 * decoder.model_dim * decoder.num_kv_heads * decoder.head_dim
    layers = 2 * tokens * (layer_weights(decoder) * whole + last)
    layers += (
        2 * tokens * sizes.num_adapter_params(decoder) * whole / decoder.num_layers
    )
    attention = attention_flops(decoder, 1, tokens) * whole / decoder.num_layers
    attended = attention
    if self_attention.uses_kernel(decoder, tokens, platform):
        forward, _ = kernel_flops(decoder, 1, tokens)
        attended = forward * whole / decoder.num_layers
    return Flops(
        model=layers + attention / 2,
        program=layers + attended,
        attention=attended,
    )


def layer_weights(decoder: Decoder) -> int:
    """Entries of one layer's matrices, each used once a token."""
    d, h = decoder.model_dim, decoder.head_dim
    attention = 2 * d * h * (decoder.num_heads + decoder.num_kv_heads)
    return attention + 3 * d * decoder.hidden_dim


def head_weights(decoder: Decoder) -> int:
    """Entries of the head's matrix."""
    return decoder.model_dim * decoder.vocab_size


def attention_flops(decoder: Decoder, num_rows: int, tokens: int) -> float:
    """Both products of all heads and layers, every query by every key."""
    width = decoder.num_heads * decoder.head_dim
    return float(4 * num_rows * tokens * tokens * width * decoder.num_layers)


def kernel_flops(decoder: Decoder, num_rows: int, tokens: int) -> tuple[float, float]:
    """Of the attention kernel in all layers, forward and backward.

    It skips the blocks that causality and a window leave empty, whatever segments a
    row has, and computes all of each other block. Forward takes two products, backward
    five in one kernel, or seven in two.
    """
    square = attention_flops(decoder, num_rows, tokens) / decoder.num_layers
    sizes = splash.blocks(tokens)
    forward = backward = 0.0
    for index in range(decoder.num_layers):
        window = None if decoder.is_global(index) else decoder.sliding_window
        size = sizes.block_q
        filled = _filled(tokens, size, size, window)
        column = sizes.block_kv_dkv or size
        of_keys = _filled(tokens, size, column, window)
        forward += square * filled
        if sizes.use_fused_bwd_kernel:
            backward += square * 5 / 2 * of_keys
        else:
            backward += square * (4 / 2 * of_keys + 3 / 2 * filled)
    return forward, backward


def _filled(tokens: int, rows: int, columns: int, window: int | None) -> float:
    """The share of blocks, rows x columns, with a key that some query may see."""
    first_query = np.arange(0, tokens, rows)[:, None]
    first_key = np.arange(0, tokens, columns)[None]
    runs = first_key < first_query + rows
    if window is not None:
        runs &= first_key + columns > first_query - window + 1
    return float(runs.mean())


def _is_chunked(train: Train, num_rows: int) -> bool:
    chunk = train.learner.logprob_chunk
    return bool(chunk) and max(chunk // num_rows, 1) < sizes.row_trained(train)


def _extra_forwards(train: Train) -> int:
    """Passes without a backward one: of the reference, and of frozen round weights."""
    return int(train.objective.needs_reference) + int(has_frozen_round(train))


def has_frozen_round(train: Train) -> bool:
    """Whether updates behind a round's first take logprobs under its first weights."""
    pipeline = train.pipeline
    is_stale = pipeline.groups_per_update < pipeline.groups_per_round
    return train.objective.old_policy == "recompute" and is_stale
