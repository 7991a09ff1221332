"""Mistral: Llama with a sliding window on every layer."""

from jigsaw_jax.model.families.family import Family

MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    must={"hidden_act": "silu"},
    defaults={
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    has_windows=True,
    global_every=0,
)
