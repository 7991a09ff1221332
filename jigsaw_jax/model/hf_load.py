"""Weights from a Hugging Face folder, leaf by leaf straight into their sharding."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax.model.families.family import ENDS
from jigsaw_jax.model.hf_folder import Folder
from jigsaw_jax.model.tensor_names import Leaf, leaves
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Params

# Of what XLA's CPU client aliases.
_ALIGNMENT = 64


def load_folder(folder: Folder, decoder: Decoder, shardings: Any = None) -> Params:
    """The folder's weights in the decoder's storage type, every tensor accounted for.

    The host holds one device's part of one leaf at a time, and of the file the pages
    of one tensor.

    Args:
      folder: of the same model as `decoder`.
      decoder: whose params they become.
      shardings: a sharding for each leaf; None for the first device.

    Returns:
      Params as `init_params` lays them out.

    Raises:
      ValueError: a tensor is missing, not used, of another shape, or not finite.
    """
    folder.check(decoder)
    wanted = list(leaves(decoder, folder.family))
    _check_names(folder, decoder, wanted)
    if shardings is None:
        alone = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = {}
        for leaf in wanted:
            _set(shardings, leaf.path, alone)
    dtype = jnp.dtype(decoder.param_dtype)
    params: dict[str, Any] = {}
    for leaf in wanted:
        sharding = shardings
        for key in leaf.path:
            sharding = sharding[key]
        _set(params, leaf.path, _placed(folder, leaf, dtype, sharding))
    return params


def _check_names(folder: Folder, decoder: Decoder, wanted: list[Leaf]) -> None:
    """Every tensor is there, has its shape, and is used once."""
    shapes = folder.shapes
    unused = set(shapes)
    for leaf in wanted:
        for name in leaf.names.flat:
            if name not in shapes:
                raise ValueError(f"tensor {name} must be in the folder, and is not")
            unused.discard(name)
            if shapes[name] != leaf.file_shape:
                raise ValueError(
                    f"tensor {name} must have shape {leaf.file_shape}, "
                    f"got {shapes[name]}"
                )
    head = ENDS["head"]
    if decoder.tied_head and head in unused:
        # Some checkpoints store the tied head a second time.
        if not np.array_equal(folder.tensor(head), folder.tensor(ENDS["embedding"])):
            raise ValueError(
                f"tensor {head} must equal the embedding where the head is tied; "
                "set tie_word_embeddings to false"
            )
        unused.discard(head)
    if unused:
        raise ValueError(
            f"tensors must all be used, got {len(unused)} left: {sorted(unused)[:5]}"
        )


def _placed(
    folder: Folder, leaf: Leaf, dtype: jnp.dtype, sharding: jax.sharding.Sharding
) -> jax.Array:
    """One leaf on its devices; what several devices hold is read once."""
    parts: dict[Any, tuple[tuple[slice, ...], list[Any]]] = {}
    for device, index in sharding.addressable_devices_indices_map(leaf.shape).items():
        assert index is not None
        bounds = tuple(
            slice(*part.indices(size))
            for part, size in zip(index, leaf.shape, strict=True)
        )
        key = tuple((part.start, part.stop) for part in bounds)
        parts.setdefault(key, (bounds, []))[1].append(device)
    arrays = []
    for bounds, devices in parts.values():
        block = _read(folder, leaf, dtype, bounds)
        arrays += [jax.device_put(block, device) for device in devices]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, arrays)


def _read(
    folder: Folder, leaf: Leaf, dtype: jnp.dtype, bounds: tuple[slice, ...]
) -> np.ndarray:
    """The part of a leaf within `bounds`."""
    num_lead = leaf.names.ndim
    names, inner = leaf.names[bounds[:num_lead]], bounds[num_lead:]
    block = _empty([part.stop - part.start for part in bounds], dtype)
    for place, name in np.ndenumerate(names):
        part = leaf.from_file(folder.tensor(name))[inner]
        block[place] = part
        if not np.isfinite(block[place]).all():
            raise ValueError(f"tensor {name} must be finite, and is not")
    return block


def _empty(shape: list[int], dtype: np.dtype) -> np.ndarray:
    """Memory so aligned that a CPU device takes it over without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _set(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
