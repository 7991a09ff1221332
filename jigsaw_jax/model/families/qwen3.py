"""Qwen3, dense: Llama with a norm on every query and key head."""

from jigsaw_jax.model.families.family import Family

QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    fixed={"qk_norm": True},
    must={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
    defaults={"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "head_dim": 128},
)
