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


def num_adapter_params(decoder: Decoder) -> int:
    """Parameters of the adapters of all layers; 0 without."""
    d, f, h = decoder.model_dim, decoder.hidden_dim, decoder.head_dim
    heads, kv_heads = decoder.num_heads * h, decoder.num_kv_heads * h
    # Inputs and outputs of each weight together, once a rank.
    widths = {
        "query": d + heads,
        "key": d + kv_heads,
        "value": d + kv_heads,
        "output": heads + d,
        "gate": d + f,
        "up": d + f,
        "down": f + d,
    }
    lora = decoder.lora
    rank = lora.rank or 0
    return decoder.num_layers * rank * sum(widths[name] for name in lora.names)


def num_trained(decoder: Decoder) -> int:
    """Parameters that the optimizer steps: the adapters', where there are some."""
    return num_adapter_params(decoder) or num_params(decoder)


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
    decoder = train.decoder
    base = num_params(decoder) * _BYTES[decoder.param_dtype]
    adapters = 4 * num_adapter_params(decoder)
    version = version_bytes(decoder)
    copy = version if _shares_base(train) else base + adapters
    parts = {
        "learner parameters": base + adapters,
        "sampler parameters": copy,
        "reference parameters": version if train.objective.needs_reference else 0,
        "round's parameters": version if train.objective.old_policy != "sampler" else 0,
        "gradient sums (float32)": 4 * num_trained(decoder),
        "optimizer moments (float32)": 8 * num_trained(decoder),
        "KV cache": cache_bytes(train),
        "logits of a micro-batch": logits_bytes(train),
    }
    return {name: size for name, size in parts.items() if size}


def version_bytes(decoder: Decoder) -> int:
    """Of what trains: of the base there is one, whatever versions of adapters."""
    adapters = 4 * num_adapter_params(decoder)
    return adapters or num_params(decoder) * _BYTES[decoder.param_dtype]


def _shares_base(train: Train) -> bool:
    """Whether sampler and learner have one base: same devices, layout and type."""
    mesh, decoder = train.mesh, train.decoder
    is_one = mesh.learner_devices == mesh.tensor == mesh.sampler_tensor
    return mesh.shared and is_one and decoder.dtype == decoder.param_dtype


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
