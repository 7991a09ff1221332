"""Tiny decoders of each family, with weights far from their symmetric start."""

import dataclasses

import jax
import numpy as np

from jigsaw_jax import model
from jigsaw_jax.settings import Decoder

SIZES = {
    "vocab_size": 62,
    "num_layers": 2,
    "model_dim": 24,
    "hidden_dim": 40,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "init_scale": 0.3,
}
LLAMA = Decoder(**SIZES, rope_base=500.0, tied_head=False, norm_eps=1e-5)
QWEN3 = Decoder(**SIZES, rope_base=1e6, qk_norm=True)
GEMMA3 = Decoder(
    **SIZES,
    rope_base=1e5,
    rope_local_base=100.0,
    norm_has_offset=True,
    sandwich_norms=True,
    qk_norm=True,
    activation="gelu",
    scale_embedding=True,
    sliding_window=5,
    global_every=2,
)
LLAMA31 = Decoder(
    **SIZES,
    rope_base=500.0,
    rope_scaling="llama3",
    rope_factor=8.0,
    rope_original_length=32,
)
QWEN2 = Decoder(**SIZES, rope_base=1e4, qkv_bias=True)
QWEN3_MOE = Decoder(
    **SIZES, rope_base=1e6, qk_norm=True, num_experts=5, experts_per_token=2
)
GEMMA2 = Decoder(
    **SIZES,
    norm_has_offset=True,
    sandwich_norms=True,
    activation="gelu",
    scale_embedding=True,
    sliding_window=5,
    global_every=2,
    query_pre_attn_scalar=6.0,
    attention_soft_cap=2.0,
    logit_soft_cap=4.0,
)
MISTRAL = Decoder(**SIZES, tied_head=False, sliding_window=5, global_every=0)
GEMMA3_4B = dataclasses.replace(GEMMA3, rope_scaling="linear", rope_factor=8.0)
FAMILIES = {
    "llama": LLAMA,
    "llama31": LLAMA31,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3_4b": GEMMA3_4B,
    "mistral": MISTRAL,
}


def random_params(decoder, seed=0):
    """Initial weights with noise on every leaf, so that norms differ from 1 too."""
    params = model.init_params(decoder, seed)
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: x + 0.2 * rng.standard_normal(x.shape).astype(np.float32), params
    )
