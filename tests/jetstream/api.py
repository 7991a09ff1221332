"""Names and parameters of `jetstream.engine.engine_api`, in the two versions we serve.

RELEASE is google-jetstream 0.2.2; the conformance test compares it with the package.
MAIN is the last state of AI-Hypercomputer/JetStream's main, in which the project was
archived, as vllm-project/tpu-inference kept it in
tpu_commons/core/jetstream_commons/engine/engine_api.py at its commit 76a91d552d47.

A method is (required, optional) parameters without self; a property is None.
"""

RELEASE = {
    "prefill": (("params", "padded_tokens", "true_length"), ("existing_prefix",)),
    "generate": (("params", "decode_state"), ()),
    "insert": (("prefix", "decode_state", "slot"), ()),
    "load_params": ((), ()),
    "get_prefix_destination_sharding": ((), ()),
    "get_tokenizer": ((), ()),
    "build_tokenizer": (("metadata",), ()),
    "init_decode_state": ((), ()),
    "max_concurrent_decodes": None,
    "samples_per_slot": None,
    "max_prefill_length": None,
    "mesh": None,
    "colocated_cpus": None,
}

MAIN = RELEASE | {
    "prefill": (
        ("params", "padded_tokens", "true_length"),
        ("existing_prefix", "sampler", "request_id"),
    ),
    "prefill_multisampling": (
        ("params", "padded_tokens", "true_length"),
        ("existing_prefix", "sampler", "rng", "num_samples"),
    ),
    "generate": (("params", "decode_state"), ("sampler",)),
    "insert": (("prefix", "decode_state", "slot"), ("request_id",)),
    "bulk_insert": (("prefix", "decode_state", "slots"), ()),
    "free_resource": (("slot",), ()),
    "use_chunked_prefill": None,
    "prefill_chunk_size": None,
}

# The others have a body in the package.
NOT_ABSTRACT = ("build_tokenizer", "free_resource")

# Drivers call them so: (positional, by keyword).
RELEASE_CALLS = {
    "prefill": ((), ("params", "padded_tokens", "true_length")),
    "generate": (("params", "decode_state"), ()),
    "insert": (("prefix", "decode_state"), ("slot",)),
    "load_params": ((), ()),
    "init_decode_state": ((), ()),
    "get_prefix_destination_sharding": ((), ()),
    "get_tokenizer": ((), ()),
    "build_tokenizer": (("metadata",), ()),
}
MAIN_CALLS = RELEASE_CALLS | {
    "prefill_multisampling": (
        (),
        ("params", "padded_tokens", "true_length", "num_samples"),
    ),
    "insert": (("prefix", "decode_state"), ("slot", "request_id")),
    "bulk_insert": (("prefix", "decode_state"), ("slots",)),
    "free_resource": (("slot",), ()),
}

# Of `ResultTokens`; main has log_prob with a default beside them.
RESULT_FIELDS = (
    "data",
    "tokens_idx",
    "valid_idx",
    "length_idx",
    "samples_per_slot",
)
