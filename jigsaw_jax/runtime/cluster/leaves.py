"""Gradient sums as named host arrays in Ray's store; every leaf accounted for."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import ray

from jigsaw_jax.types import Params


def put(params: Params) -> tuple[list[str], list[Any]]:
    """Names and references of all leaves; this process owns the objects."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(params))
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return names, [ray.put(np.asarray(leaf)) for _, leaf in leaves]


def get(names: Sequence[str], refs: Sequence[Any], shapes: Params) -> Params:
    """The tree of `shapes` with the arrays that were put.

    Args:
      names: of the leaves, as `put` gave them.
      refs: of the arrays, by name.
      shapes: what is expected.

    Returns:
      Host arrays; read-only views of the store where it is on this host.

    Raises:
      ValueError: a leaf is missing, left over or of another shape.
    """
    wanted, treedef = jax.tree_util.tree_flatten_with_path(shapes)
    keys = [jax.tree_util.keystr(path) for path, _ in wanted]
    if sorted(names) != sorted(keys):
        odd = sorted(set(names) ^ set(keys))
        raise ValueError(f"sums must match leaf for leaf, got {odd[:5]}")
    found = dict(zip(names, ray.get(list(refs)), strict=True))
    for key, (_, shape) in zip(keys, wanted, strict=True):
        if found[key].shape != shape.shape:
            raise ValueError(f"sum {key} must be {shape.shape}, got {found[key].shape}")
    return jax.tree_util.tree_unflatten(treedef, [found[key] for key in keys])
