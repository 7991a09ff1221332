"""Llama 2 and 3, rope scaling of 3.1 included; SmolLM2 is one of them."""

from jigsaw_jax.model.families.family import Family

LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    must={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    defaults={"rms_norm_eps": 1e-6, "tie_word_embeddings": False},
)
