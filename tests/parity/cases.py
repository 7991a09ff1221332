"""Tiny random models of every family, and the weights that a seed gives them."""

import json
import pathlib
import zlib

import numpy as np
from safetensors.numpy import save_file

GOLDEN = pathlib.Path(__file__).parent / "golden"
NUM_TOKENS = 300
PROMPT_TOKENS = 40
NEW_TOKENS = 64
# Where logits are kept: the first, around a window's or the prompt's end, the last.
PLACES = (0, 1, 31, 32, 33, 100, 201, 299)

_SIZES = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GEMMA = _SIZES | {
    "head_dim": 24,
    "query_pre_attn_scalar": 20,
    "sliding_window": 32,
    "hidden_activation": "gelu_pytorch_tanh",
}
# A head_dim of 24 is not the residual stream's width over the heads.
CASES = {
    "llama2": _SIZES
    | {"model_type": "llama", "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
    "llama3.1": _SIZES
    | {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": _LLAMA31},
    "smollm2": _SIZES
    | {
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 72,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    },
    "mistral": _SIZES | {"model_type": "mistral", "sliding_window": 32},
    "qwen2.5": _SIZES
    | {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": _SIZES | {"model_type": "qwen3", "rope_theta": 1e6, "head_dim": 24},
    "qwen3_moe": _SIZES
    | {
        "model_type": "qwen3_moe",
        "rope_theta": 1e6,
        "head_dim": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
    },
    "gemma2": _GEMMA
    | {
        "model_type": "gemma2",
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3": _GEMMA
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "gemma3_scaled": _GEMMA
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}


def tokens(case: str) -> np.ndarray:
    """The sequence that logits are taken on."""
    rng = np.random.default_rng(zlib.crc32(case.encode()))
    return rng.integers(0, CASES[case]["vocab_size"], NUM_TOKENS)


def weight(case: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of one tensor, so large that no part of the model is idle.

    A tied embedding is small and the norm before the head large, lest a token's own
    embedding outweigh the layers and every token predict itself.
    """
    is_gemma = case.startswith("gemma")
    is_tied = CASES[case].get("tie_word_embeddings", is_gemma)
    rng = np.random.default_rng([zlib.crc32(case.encode()), zlib.crc32(name.encode())])
    noise = rng.standard_normal(shape, np.float32)
    if name.endswith("norm.weight"):
        middle = 5.0 if is_tied and name == "model.norm.weight" else 1.0
        middle -= 1.0 if is_gemma else 0.0
        return np.float32(middle) + np.float32(0.2) * noise
    if name.endswith("bias"):
        return np.float32(0.5) * noise
    if "embed_tokens" in name:
        return np.float32(0.03 if is_tied else 0.25) * noise
    return noise / np.float32(np.sqrt(shape[-1]))


def write_folder(
    folder: pathlib.Path, case: str, shapes: dict[str, tuple[int, ...]], config: dict
) -> None:
    """A Hugging Face folder with these tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: weight(case, name, tuple(shape)) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
