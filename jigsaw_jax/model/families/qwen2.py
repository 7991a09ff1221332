"""Qwen2 and Qwen2.5: Llama with biases on query, key and value."""

from jigsaw_jax.model.families.family import Family

QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    fixed={"qkv_bias": True},
    must={"hidden_act": "silu", "use_sliding_window": False},
    defaults={"rms_norm_eps": 1e-6, "tie_word_embeddings": False},
)
