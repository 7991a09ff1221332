"""Qwen3 with experts in every layer."""

from jigsaw_jax.model.families.family import FIELDS, LAYER, Family

QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    fixed={"qk_norm": True},
    must={
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    fields=FIELDS
    | {
        "hidden_dim": "moe_intermediate_size",
        "num_experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "norm_topk_prob": "norm_topk_prob",
    },
    # Without a head_dim, it is the residual stream's width over the heads.
    defaults={
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "norm_topk_prob": False,
    },
    aliases={"num_local_experts": "num_experts"},
    layer=LAYER
    | {
        "router": "mlp.gate.weight",
        "gate": "mlp.experts.{expert}.gate_proj.weight",
        "up": "mlp.experts.{expert}.up_proj.weight",
        "down": "mlp.experts.{expert}.down_proj.weight",
    },
)
