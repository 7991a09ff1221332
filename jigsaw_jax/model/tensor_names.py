"""Where each leaf of the params stands among a checkpoint's tensors, and in what shape.

A checkpoint has a linear layer as one matrix (out, in), heads flattened, and one tensor
a layer and an expert. A leaf of ours has the dims in the order of use, and with
`scan_layers` or experts leading dims that count tensors.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jigsaw_jax.model.decoder import init_params, logical_axes
from jigsaw_jax.model.families import Family
from jigsaw_jax.model.families.family import ENDS
from jigsaw_jax.settings import Decoder

_COUNTING = ("layers", "expert")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of the params.

    Attributes:
      path: keys that lead to it.
      shape: whole.
      names: of its tensors, an array over the leading dims that count tensors.
      num_in: leading dims of the rest that a linear layer sums over; None where the
        tensor has the dims in our order.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    names: np.ndarray
    num_in: int | None

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Of one tensor, as we have it."""
        return self.shape[self.names.ndim :]

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Of one tensor, as the checkpoint has it."""
        shape = self.own_shape
        if self.num_in is None:
            return shape
        return math.prod(shape[self.num_in :]), math.prod(shape[: self.num_in])

    def from_file(self, tensor: np.ndarray) -> np.ndarray:
        """A view of the checkpoint's tensor in our dims."""
        if self.num_in is None:
            return tensor
        shape = self.own_shape
        outputs, inputs = shape[self.num_in :], shape[: self.num_in]
        split = tensor.reshape(*outputs, *inputs)
        order = range(len(shape))
        return split.transpose(*order[len(outputs) :], *order[: len(outputs)])

    def to_file(self, own: np.ndarray) -> np.ndarray:
        """Our tensor in the checkpoint's dims."""
        if self.num_in is None:
            return own
        inputs = math.prod(self.own_shape[: self.num_in])
        return own.reshape(inputs, -1).T


def leaves(decoder: Decoder, family: Family) -> Iterator[Leaf]:
    """Every leaf of the params, in a fixed order; adapters are in no checkpoint.

    Args:
      decoder: whose params.
      family: that has the names.

    Yields:
      Leaves.

    Raises:
      ValueError: the family has no tensor for a leaf.
    """
    decoder = decoder.base
    shapes = jax.eval_shape(lambda: init_params(decoder, 0))
    flat, _ = jax.tree_util.tree_flatten_with_path(shapes)
    axes = jax.tree.leaves(logical_axes(decoder), is_leaf=_is_axes)
    for (keys, shape), names in zip(flat, axes, strict=True):
        path = tuple(key.key for key in keys)
        yield _leaf(path, shape.shape, names, family)


def _is_axes(node: Any) -> bool:
    return isinstance(node, tuple)


def _leaf(
    path: tuple[str, ...],
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    family: Family,
) -> Leaf:
    kind, name = path[0], path[-1]
    table = ENDS if kind == "ends" else family.layer
    if name not in table:
        raise ValueError(f"{family.model_type} must have a tensor for {'.'.join(path)}")
    pattern = table[name]
    if kind == "layers":
        pattern = f"model.layers.{{layers}}.{pattern}"
    counting = list(itertools.takewhile(_COUNTING.__contains__, axes))
    own = len(shape) - len(counting)
    fixed = {"layers": int(path[1])} if len(path) == 3 else {}
    sizes = shape[: len(counting)]
    names = np.empty(sizes, object)
    for index in itertools.product(*map(range, sizes)):
        names[index] = pattern.format(
            **fixed, **dict(zip(counting, index, strict=True))
        )
    has_order = own == 1 or name == "embedding"
    num_in = None if has_order else 2 if name == "output" else 1
    return Leaf(path, shape, names, num_in)
