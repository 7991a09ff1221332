"""Params written as a Hugging Face folder that transformers loads."""

import functools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from jigsaw_jax.model import lora
from jigsaw_jax.model.families import FAMILIES, family_of
from jigsaw_jax.model.hf_folder import CONFIG, INDEX, SINGLE
from jigsaw_jax.model.tensor_names import Leaf, leaves
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Params

SHARD_BYTES_MAX = 4 * 2**30
# What belongs to a model beside its weights, where the folder it came from has it.
_COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "merges.txt",
    "vocab.json",
)


def export_folder(
    path: str | pathlib.Path,
    decoder: Decoder,
    params: Params,
    *,
    dtype: str | None = None,
    like: str | pathlib.Path | None = None,
    beside: Callable[[pathlib.Path], None] | None = None,
    replace: bool = False,
    shard_bytes_max: int = SHARD_BYTES_MAX,
) -> None:
    """Write config.json and safetensors; the folder appears whole or not at all.

    The host holds one safetensors file at a time.

    Args:
      path: of the folder, which must not exist or be empty.
      decoder: whose params.
      params: adapters, where it has some, are merged in float32.
      dtype: "float32" or "bfloat16" to store; None for the params' own.
      like: the folder that the model came from. Its tokenizer, and the keys of its
        config.json that are no part of the decoder, are kept.
      beside: writes further files, a tokenizer's say, into the folder that it is given.
      replace: a folder that is there already gives way when the new one is whole.
      shard_bytes_max: of one file, unless a single tensor is larger.

    Raises:
      ValueError: the folder has files in it, or no family can express the decoder.
    """
    path = pathlib.Path(path)
    if path.exists() and not replace and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"the export must go to a new or empty folder, got {path}")
    kept = {} if like is None else json.loads((pathlib.Path(like) / CONFIG).read_text())
    kept = kept.get("text_config", kept)
    family = FAMILIES.get(kept.get("model_type"), None) or family_of(decoder)
    stored = jnp.dtype(dtype or decoder.param_dtype)
    known = {"rope_parameters", "rope_scaling", "torch_dtype", "dtype", "layer_types"}
    config = {key: value for key, value in kept.items() if key not in known}
    config |= family.config(decoder)
    config["torch_dtype"] = stored.name
    partial = path.with_name(f".{path.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write_weights(
        partial,
        stored,
        _files(list(leaves(decoder, family)), stored, shard_bytes_max),
        functools.partial(lora.merged, decoder, params),
    )
    _write_json(partial / CONFIG, config)
    for name in _COMPANIONS if like is not None else ():
        companion = pathlib.Path(like or "") / name
        if companion.is_file():
            shutil.copyfile(companion, partial / name)
    if beside is not None:
        beside(partial)
    if replace:
        shutil.rmtree(path, ignore_errors=True)
    partial.replace(path)


Piece = tuple[Leaf, tuple[int, ...]]
"""A leaf and the place of one tensor in it."""


def _files(
    wanted: list[Leaf], dtype: jnp.dtype, shard_bytes_max: int
) -> list[list[Piece]]:
    """Tensors by the file that they go to, in order."""
    files: list[list[Piece]] = [[]]
    filled = 0
    for leaf in wanted:
        size = int(np.prod(leaf.own_shape)) * dtype.itemsize
        for place in np.ndindex(*leaf.names.shape):
            if files[-1] and filled + size > shard_bytes_max:
                files.append([])
                filled = 0
            files[-1].append((leaf, place))
            filled += size
    return files


def _write_weights(
    folder: pathlib.Path,
    dtype: jnp.dtype,
    files: list[list[Piece]],
    read: Callable[[tuple[str, ...]], jax.Array],
) -> None:
    """`read` gives the leaf at a path."""
    weight_map, total = {}, 0
    for number, pieces in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        name = SINGLE if len(files) == 1 else name
        tensors = dict(_tensors(pieces, dtype, read))
        total += sum(tensor.nbytes for tensor in tensors.values())
        weight_map |= dict.fromkeys(tensors, name)
        save_file(tensors, folder / name, metadata={"format": "pt"})
        # The library lets only the owner read it; the folder has what the umask leaves.
        (folder / name).chmod(folder.stat().st_mode & 0o666)
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / INDEX, index)


def _tensors(
    pieces: list[Piece], dtype: jnp.dtype, read: Callable[[tuple[str, ...]], jax.Array]
) -> Iterator[tuple[str, np.ndarray]]:
    path, array = None, None
    for leaf, place in pieces:
        if leaf.path != path:
            path, array = leaf.path, read(leaf.path)
        assert array is not None
        if array.shape != leaf.shape:
            raise ValueError(
                f"{'.'.join(leaf.path)} must have shape {leaf.shape}, got {array.shape}"
            )
        own = np.asarray(jax.device_get(array[place] if place else array))
        tensor = np.ascontiguousarray(leaf.to_file(own).astype(dtype))
        if not np.isfinite(tensor).all():
            raise ValueError(f"tensor {leaf.names[place]} must be finite, and is not")
        yield leaf.names[place], tensor


def _write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
