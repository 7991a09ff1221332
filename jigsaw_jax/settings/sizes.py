"""Parameters, memory and shapes of a run, from its settings by arithmetic alone."""

from jigsaw_jax.settings.model import Decoder
from jigsaw_jax.settings.run import Train

_BYTES = {"float32": 4, "bfloat16": 2}


def num_params(decoder: Decoder) -> int:
    """Parameters of the model, all experts included; a tied head counts once."""
    d, h = decoder.model_dim, decoder.head_dim
    # Queries and output have N heads, keys and values K.
    attention = 2 * d * h * (decoder.num_heads + decoder.num_kv_heads)
    if decoder.qkv_bias:
        attention += h * (decoder.num_heads + 2 * decoder.num_kv_heads)
    mlp = 3 * d * decoder.hidden_dim * max(decoder.num_experts, 1)
    mlp += d * decoder.num_experts
    norms = (4 if decoder.sandwich_norms else 2) * d + (2 * h if decoder.qk_norm else 0)
    ends = decoder.vocab_size * d * (1 if decoder.tied_head else 2) + d
    return decoder.num_layers * (attention + mlp + norms) + ends


def cache_bytes(train: Train) -> int:
    """Keys and values of all slots at full length, or of all pages."""
    sampler = train.sampler
    tokens = sampler.slots * sampler.length_max
    if sampler.cache == "pages":
        tokens = sampler.pages_total * sampler.page_size
    return tokens * token_bytes(train)


def token_bytes(train: Train) -> int:
    """Keys and values of one token in the sampler's cache, each head once."""
    decoder = train.decoder
    width = decoder.head_dim * _BYTES[decoder.dtype]
    if train.sampler.kv_dtype == "int8":
        # A byte each, and a float32 scale.
        width = decoder.head_dim + 4
    return 2 * decoder.num_layers * decoder.num_kv_heads * width


def logits_bytes(train: Train) -> int:
    """Float32 logits of the sampled tokens that a full micro-batch holds at once."""
    tokens = train.learner.rows * row_trained(train)
    if train.learner.logprob_chunk:
        tokens = min(tokens, train.learner.logprob_chunk)
    return 4 * tokens * train.decoder.vocab_size


def memory_bytes(train: Train) -> dict[str, int]:
    """Bytes over all devices by what holds them; activations are not counted.

    Args:
      train: the run.

    Returns:
      Name to bytes, without what this run does not have.
    """
    params = num_params(train.decoder) * _BYTES[train.decoder.param_dtype]
    parts = {
        "learner parameters": params,
        "sampler parameters": params,
        "reference parameters": params if train.objective.needs_reference else 0,
        "round's parameters": params if train.objective.old_policy != "sampler" else 0,
        "gradient sums (float32)": 4 * num_params(train.decoder),
        "optimizer moments (float32)": 8 * num_params(train.decoder),
        "KV cache": cache_bytes(train),
        "logits of a micro-batch": logits_bytes(train),
    }
    return {name: size for name, size in parts.items() if size}


def row_trained(train: Train) -> int:
    """Places of a row for sampled tokens: the share that longest trajectories have.

    With a shared prefix that is the share of a longest prompt and as many longest
    completions of one group as fit behind it.
    """
    tokens, sampler = train.learner.row_tokens, train.sampler
    prompt, new = sampler.length_max - sampler.new_tokens_max, sampler.new_tokens_max
    if train.learner.shared_prefix:
        most = train.pipeline.samples_per_group
        new *= min(max((tokens - prompt) // new, 1), most)
    return min(-(-tokens * new // (prompt + new)), tokens)


def row_shapes(train: Train) -> list[tuple[int, int]]:
    """(rows, tokens) of every micro-batch shape; all divide over the devices."""
    devices = train.mesh.data * train.mesh.fsdp
    rows = [train.learner.rows]
    while len(rows) < train.learner.row_shapes and rows[-1] % (2 * devices) == 0:
        rows.append(rows[-1] // 2)
    return [(count, train.learner.row_tokens) for count in rows]
