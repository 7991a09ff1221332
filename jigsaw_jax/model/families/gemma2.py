"""Gemma 2: soft caps, norms on both sides, every other layer local."""

from jigsaw_jax.model.families.family import FIELDS, LAYER, Family

GEMMA_FIXED = {
    "norm_has_offset": True,
    "sandwich_norms": True,
    "activation": "gelu",
    "scale_embedding": True,
}
GEMMA_MUST = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
}
GEMMA_FIELDS = FIELDS | {
    "query_pre_attn_scalar": "query_pre_attn_scalar",
    "attention_soft_cap": "attn_logit_softcapping",
    "logit_soft_cap": "final_logit_softcapping",
}
GEMMA_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
GEMMA_LAYER = LAYER | {
    "attention_out_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_out_norm": "post_feedforward_layernorm.weight",
}

GEMMA2 = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    fixed=GEMMA_FIXED,
    must=GEMMA_MUST,
    fields=GEMMA_FIELDS,
    defaults=GEMMA_DEFAULTS
    | {
        "vocab_size": 256_000,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    has_windows=True,
    global_every=2,
    layer=GEMMA_LAYER,
)
