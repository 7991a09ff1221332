"""A learner's tree as leaves and the bytes of this host's shards."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax.runtime.weights.manifest import Index, Leaf
from jigsaw_jax.runtime.weights.placement import WORDS, bounds


@dataclasses.dataclass(frozen=True)
class Box:
    """One shard of this host's.

    Attributes:
      leaf: its place in the tree.
      index: of the box.
      values: on their device, on their way to the host; or there.
    """

    leaf: int
    index: Index
    values: jax.Array | np.ndarray

    @functools.cached_property
    def words(self) -> np.ndarray:
        """Its values on the host, as unsigned integers of their size; once copied."""
        values = np.asarray(self.values)
        return values.view(WORDS[values.itemsize])

    @property
    def data_u8(self) -> np.ndarray:
        """Its bytes."""
        return self.words.reshape(-1).view(np.uint8)


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """A version's weights, soon on the host; no later step changes it.

    Attributes:
      version: of the weights.
      leaves: without shards.
      boxes: of this host, each element of the leaves on one host only.
    """

    version: int
    leaves: tuple[Leaf, ...]
    boxes: tuple[Box, ...]


def take(params: Any, version: int, *, as_bf16: bool) -> Snapshot:
    """Begin to copy shards to the host, or look at them where they are there.

    Args:
      params: tree of arrays, never donated as long as the snapshot lives.
      version: of them.
      as_bf16: send wider floats rounded to bfloat16.

    Returns:
      The snapshot.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    leaves, sent = [], []
    for path, array in flat:
        is_wide = array.dtype in (jnp.float32, jnp.float64)
        sent.append(array.astype(jnp.bfloat16) if as_bf16 and is_wide else array)
        leaves.append(
            Leaf(
                name=jax.tree_util.keystr(path),
                dtype=array.dtype.name,
                sent=sent[-1].dtype.name,
                shape=array.shape,
                shards=(),
            )
        )
    shards = [
        (place, bounds(shard.index, array.shape), shard.data)
        for place, array in enumerate(sent)
        for shard in array.addressable_shards
        if shard.replica_id == 0
    ]
    for _, _, data in shards:
        data.copy_to_host_async()
    # What was rounded is for this alone, and isn't to stay on the devices.
    boxes = tuple(
        Box(place, index, np.asarray(data) if as_bf16 else data)
        for place, index, data in shards
    )
    return Snapshot(version, tuple(leaves), boxes)
