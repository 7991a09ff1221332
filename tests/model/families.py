"""Tiny decoders of each family, with weights far from their symmetric start."""

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
FAMILIES = {"llama": LLAMA, "qwen3": QWEN3, "gemma3": GEMMA3}


def random_params(decoder, seed=0):
    """Initial weights with noise on every leaf, so that norms differ from 1 too."""
    params = model.init_params(decoder, seed)
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: x + 0.2 * rng.standard_normal(x.shape).astype(np.float32), params
    )
