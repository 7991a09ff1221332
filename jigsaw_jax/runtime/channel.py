"""Weights from the learner's mesh to the sampler's, whole or not at all."""

from typing import Any

import jax

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import decoder as model
from jigsaw_jax.model import lora
from jigsaw_jax.settings import Decoder


class WeightChannel:
    """`jax.device_put` between sub-meshes of one runtime; every leaf accounted for.

    What trains and what is frozen go separately, since the latter goes only once.
    """

    def __init__(self, decoder: Decoder, sampler_mesh: jax.sharding.Mesh) -> None:
        self._mesh = sampler_mesh
        self._axes, self._frozen_axes = lora.split(model.logical_axes(decoder))

    def send(self, params: Any) -> Any:
        """Place weights as the sampler wants them.

        Args:
          params: what trains of the learner's.

        Returns:
          The same values on the sampler's mesh.

        Raises:
          ValueError: a leaf has no counterpart on the other side.
        """
        return self._send(params, self._axes)

    def send_frozen(self, params: Any) -> Any:
        """`send` of the weights that never change.

        Args:
          params: the learner's; empty where all train.

        Returns:
          The same values on the sampler's mesh: the same arrays where both sides
          have the same devices and layout.

        Raises:
          ValueError: a leaf has no counterpart on the other side.
        """
        return self._send(params, self._frozen_axes)

    def _send(self, params: Any, axes: Any) -> Any:
        sent = leaf_names(params)
        wanted = leaf_names(meshes.sharding_tree(self._mesh, axes))
        if sent != wanted:
            odd = sorted(sent ^ wanted)
            raise ValueError(
                f"weights must match leaf for leaf, got {len(odd)} unmatched: {odd[:5]}"
            )
        # With the shapes, key-value heads that do not divide are replicated.
        shardings = meshes.sharding_tree(self._mesh, axes, params)
        placed = meshes.place(params, shardings)
        jax.block_until_ready(placed)
        return placed


def leaf_names(tree: Any) -> set[str]:
    """The path of every leaf."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path) for path, _ in paths}
