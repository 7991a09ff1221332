"""Weights and shape of a decoder from a GGUF file: Llama, Qwen3 or Gemma 3."""

import contextlib
import dataclasses
import hashlib
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from jigsaw_jax.model.decoder import init_params, layer_name, stack
from jigsaw_jax.model.families.gemma3 import GEMMA3
from jigsaw_jax.model.families.qwen3 import QWEN3
from jigsaw_jax.settings import Decoder
from jigsaw_jax.settings.paths import gguf_path, read_gguf
from jigsaw_jax.types import Params

# Which tensor of the file holds a leaf.
ENDS = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
}
LAYER = {
    "attention_norm": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "output": "attn_output.weight",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    "attention_out_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "mlp_out_norm": "post_ffw_norm.weight",
}
# Fields of Decoder that the metadata leaves out, by architecture.
FIXED: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen3": QWEN3.fixed,
    "gemma3": {**GEMMA3.fixed, "global_every": GEMMA3.global_every},
}
# Gemma 3 27B, known by its layers, scales scores by D / N instead of H.
_LAYERS_OF_27B = 62


def decoder_from_gguf(path: str) -> Decoder:
    """The shape that the file's metadata describes.

    Args:
      path: of a file, or "package:NAME".

    Returns:
      The decoder, in float32 and unrolled.

    Raises:
      ValueError: the architecture is not one of ours, or the file is cut off.
    """
    reader = read_gguf(gguf_path(path, name="Weights.path"))
    architecture = reader.fields["general.architecture"].contents()
    if architecture not in FIXED:
        raise ValueError(
            f"GGUF architecture must be one of {', '.join(FIXED)}, got {architecture!r}"
        )

    def field(*names: str, default: Any = None) -> Any:
        for name in names:
            if f"{architecture}.{name}" in reader.fields:
                return reader.fields[f"{architecture}.{name}"].contents()
        return default

    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    num_layers, model_dim = field("block_count"), field("embedding_length")
    num_heads = field("attention.head_count")
    values = dict(FIXED[architecture])
    if architecture == "gemma3":
        values["sliding_window"] = field("attention.sliding_window")
        if num_layers == _LAYERS_OF_27B:
            values["query_pre_attn_scalar"] = model_dim / num_heads
    if field("rope.scaling.type", default="none") != "none":
        values["rope_scaling"] = field("rope.scaling.type")
        values["rope_factor"] = float(field("rope.scaling.factor"))
    epsilon = float(field("attention.layer_norm_rms_epsilon"))
    return Decoder(
        vocab_size=int(shapes[ENDS["embedding"]][1]),
        num_layers=num_layers,
        model_dim=model_dim,
        hidden_dim=field("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=field("attention.head_count_kv"),
        head_dim=field(
            "attention.key_length",
            "rope.dimension_count",
            default=model_dim // num_heads,
        ),
        rope_base=float(field("rope.freq_base", default=10_000.0)),
        # The file has a float32; what was meant is the shortest decimal near it.
        norm_eps=float(np.format_float_scientific(np.float32(epsilon))),
        tied_head=ENDS["head"] not in shapes,
        **values,
    )


def load_gguf(path: str, decoder: Decoder) -> Params:
    """The weights in the decoder's storage type, every tensor accounted for.

    Dequantised tensors are kept under ~/.cache/jigsaw_jax (or $XDG_CACHE_HOME), since
    that takes seconds.

    Args:
      path: of a file, or "package:NAME".
      decoder: the shape that the weights must have.

    Returns:
      Params as `init_params` lays them out.

    Raises:
      ValueError: a tensor is missing, not used, of another shape, or not finite.
    """
    decoder = decoder.base
    found = gguf_path(path, name="Weights.path")
    params = params_from_tensors(decoder, _dequantised(found))
    return stack(params) if decoder.scan_layers else params


def params_from_tensors(decoder: Decoder, tensors: Mapping[str, np.ndarray]) -> Params:
    """Unrolled params from the file's float32 tensors.

    Args:
      decoder: the shape that the weights must have.
      tensors: by the file's names.

    Returns:
      Params of unrolled layers.

    Raises:
      ValueError: a tensor is missing, not used, of another shape, or not finite.
    """
    unused = set(tensors)

    def take(name: str, leaf: str, shape: tuple[int, ...]) -> Any:
        if name not in tensors:
            raise ValueError(f"GGUF tensor {name} must exist for this decoder")
        unused.discard(name)
        tensor = tensors[name]
        if tensor.shape != _file_shape(leaf, shape):
            raise ValueError(
                f"GGUF tensor {name} must have shape {_file_shape(leaf, shape)} for "
                f"this decoder, got {tensor.shape}"
            )
        if not np.isfinite(tensor).all():
            raise ValueError(f"GGUF tensor {name} must be finite, and is not")
        arranged = _arranged(decoder, leaf, tensor, shape)
        return jnp.asarray(arranged, jnp.dtype(decoder.param_dtype))

    def take_all(shapes: dict, name_of: Callable[[str], str]) -> dict:
        return {leaf: take(name_of(leaf), leaf, shapes[leaf]) for leaf in shapes}

    ends, layer = _leaf_shapes(decoder)
    layers = {
        layer_name(i): take_all(layer, lambda leaf, i=i: f"blk.{i}.{LAYER[leaf]}")
        for i in range(decoder.num_layers)
    }
    params = {"ends": take_all(ends, ENDS.__getitem__), "layers": layers}
    if unused:
        raise ValueError(
            f"GGUF tensors must all be used, got {len(unused)} left: "
            f"{sorted(unused)[:5]}; is the decoder's shape that of the file?"
        )
    return params


def _leaf_shapes(decoder: Decoder) -> tuple[dict, dict]:
    """Shapes of the leaves of the ends and of one layer."""
    unrolled = dataclasses.replace(decoder, scan_layers=False, num_layers=1)
    params = jax.eval_shape(lambda: init_params(unrolled, 0))
    ends, layer = params["ends"], params["layers"][layer_name(0)]
    unknown = set(layer) - set(LAYER)
    if unknown:
        known = ", ".join(FIXED)
        raise ValueError(f"decoder must be one of {known}, got {sorted(unknown)}")
    return {k: v.shape for k, v in ends.items()}, {k: v.shape for k, v in layer.items()}


def _file_shape(leaf: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The file has a matrix as (out, in), heads flattened; the embedding as we do."""
    if len(shape) == 1 or leaf == "embedding":
        return shape
    num_in = 2 if leaf == "output" else 1
    return math.prod(shape[num_in:]), math.prod(shape[:num_in])


def _arranged(
    decoder: Decoder, leaf: str, tensor: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """A tensor of the file in our order of dims.

    llama.cpp interleaves the two halves of each query and key head of the plain llama;
    they are put back for rotate-half. It adds Gemma's 1 to the norms' weights.
    """
    if leaf.endswith("norm"):
        return tensor - decoder.norm_has_offset
    if leaf == "embedding":
        return tensor
    if leaf in ("query", "key") and not decoder.qk_norm:
        rows, columns = tensor.shape
        pairs = tensor.reshape(shape[1], shape[2] // 2, 2, columns)
        tensor = pairs.swapaxes(1, 2).reshape(rows, columns)
    return tensor.T.reshape(shape)


def _dequantised(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Float32 tensors of the file by name, from the cache where it has them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    cached = pathlib.Path(root) / "jigsaw_jax" / f"{digest}.safetensors"
    if cached.is_file():
        return load_file(cached)
    tensors = {
        tensor.name: np.ascontiguousarray(
            gguf.dequantize(tensor.data, tensor.tensor_type), np.float32
        )
        for tensor in read_gguf(path).tensors
    }
    partial = cached.with_suffix(f".{os.getpid()}")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial)
        partial.replace(cached)
    except OSError:
        # A full disk or a read-only home costs the next start some seconds, no more.
        with contextlib.suppress(OSError):
            partial.unlink()
    return tensors
