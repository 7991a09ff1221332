"""Weights from the learner's mesh to the sampler's, whole or not at all."""

from typing import Any

import jax

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import decoder as model
from jigsaw_jax.settings import Decoder


class WeightChannel:
    """`jax.device_put` between sub-meshes of one runtime; every leaf accounted for."""

    def __init__(self, decoder: Decoder, sampler_mesh: jax.sharding.Mesh) -> None:
        self._mesh = sampler_mesh
        self._axes = model.logical_axes(decoder)
        self._names = leaf_names(meshes.sharding_tree(sampler_mesh, self._axes))

    def send(self, params: Any) -> Any:
        """Place weights as the sampler wants them.

        Args:
          params: the learner's.

        Returns:
          The same values on the sampler's mesh.

        Raises:
          ValueError: a leaf has no counterpart on the other side.
        """
        sent = leaf_names(params)
        if sent != self._names:
            odd = sorted(sent ^ self._names)
            raise ValueError(
                f"weights must match leaf for leaf, got {len(odd)} unmatched: {odd[:5]}"
            )
        # With the shapes, key-value heads that do not divide are replicated.
        shardings = meshes.sharding_tree(self._mesh, self._axes, params)
        placed = jax.device_put(params, shardings)
        jax.block_until_ready(placed)
        return placed


def leaf_names(tree: Any) -> set[str]:
    """The path of every leaf."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path) for path, _ in paths}
