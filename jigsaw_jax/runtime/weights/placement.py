"""Boxes of arrays: what a host's devices want, filled from boxes cut otherwise."""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jigsaw_jax.runtime.weights.arena import Arena, aligned
from jigsaw_jax.runtime.weights.manifest import Index

# Values travel as unsigned integers of their size, which NumPy copies as they are.
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Host:
    """The boxes of all leaves on this host's devices.

    Those that arrive whole stay where they arrived; the others are filled in one block
    of memory.

    Args:
      wanted: shape and sharding of each leaf.
      sent: the type that each arrives in.
      arena: of the block.
      boxes: `local_boxes` of each leaf, where that is known already.
      whole: boxes of each leaf that `adopt` will be called for.
    """

    def __init__(
        self,
        wanted: Sequence[jax.ShapeDtypeStruct],
        sent: Sequence[np.dtype],
        arena: Arena,
        boxes: Sequence[Sequence[Index]] | None = None,
        whole: Sequence[Collection[Index]] | None = None,
    ) -> None:
        self._wanted = wanted
        self._sent = sent
        boxes = [local_boxes(leaf) for leaf in wanted] if boxes is None else boxes
        whole = [()] * len(boxes) if whole is None else whole
        self._boxes = boxes
        self._targets: list[dict[Index, np.ndarray]] = [{} for _ in boxes]
        filled = [
            (place, index, volume(index) * dtype.itemsize)
            for place, (of_leaf, dtype) in enumerate(zip(boxes, sent, strict=True))
            for index in of_leaf
            if index not in whole[place]
        ]
        block = arena.lease(sum(aligned(size) for _, _, size in filled))
        start = 0
        for place, index, size in filled:
            data_u8 = block[start : start + size]
            self._targets[place][index] = as_words(data_u8, index, sent[place])
            start += aligned(size)

    def adopt(self, leaf: int, index: Index, data_u8: np.ndarray) -> None:
        """Take a whole box of this host's as it is; nobody may change it again."""
        self._targets[leaf][index] = as_words(data_u8, index, self._sent[leaf])

    def needs(self, leaf: int, index: Index) -> bool:
        """Whether any element of a box is on this host."""
        return any(overlap(index, own) is not None for own in self._boxes[leaf])

    def write(self, leaf: int, index: Index, data_u8: np.ndarray) -> None:
        """Copy what this host holds of a box out of its bytes."""
        words = as_words(data_u8, index, self._sent[leaf])
        for own, target in self._targets[leaf].items():
            both = overlap(index, own)
            if both is not None:
                target[within(both, own)] = words[within(both, index)]

    def read(self, leaf: int, index: Index) -> tuple[np.ndarray, bool]:
        """Bytes of a box, zero where they aren't here, and whether all are."""
        size = volume(index) * self._sent[leaf].itemsize
        data_u8 = np.zeros(size, np.uint8)
        words = as_words(data_u8, index, self._sent[leaf])
        here = 0
        for own, target in self._targets[leaf].items():
            both = overlap(index, own)
            if both is not None:
                words[within(both, index)] = target[within(both, own)]
                here += volume(both)
        return data_u8, here == volume(index)

    def place(self) -> list[jax.Array]:
        """The leaves on their devices, in the type in which they were sent.

        On CPU the arrays may share the boxes' memory, which nobody writes again.
        """
        # One call a leaf: to put each box and join them takes five times as long.
        arrays: list[jax.Array] = [
            jax.make_array_from_callback(leaf.shape, _sharding(leaf), box)
            for leaf, box in zip(self._wanted, self._at(), strict=True)
        ]
        jax.block_until_ready(arrays)
        return arrays

    def _at(self) -> Iterator[Callable[[Any], np.ndarray]]:
        """For each leaf, its values at an index as JAX names it."""
        for leaf, targets, dtype in zip(
            self._wanted, self._targets, self._sent, strict=True
        ):
            views = {index: words.view(dtype) for index, words in targets.items()}
            yield functools.partial(_at, views, leaf.shape)


def _at(views: dict[Index, np.ndarray], shape: Sequence[int], slices: Any) -> Any:
    return views[bounds(slices or (), shape)]


def local_boxes(leaf: jax.ShapeDtypeStruct) -> tuple[Index, ...]:
    """The boxes that this host's devices hold, each once."""
    places = _sharding(leaf).addressable_devices_indices_map(leaf.shape)
    found = (bounds(slices or (), leaf.shape) for slices in places.values())
    return tuple(dict.fromkeys(found))


def box_shape(leaf: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """Shape of the boxes that devices hold; of all the same."""
    return _sharding(leaf).shard_shape(leaf.shape)


def bounds(slices: Sequence[slice], shape: Sequence[int]) -> Index:
    """(start, stop) of each dim."""
    found = []
    for cut, size in zip(slices, shape, strict=True):
        start, stop, _ = cut.indices(size)
        found.append((start, stop))
    return tuple(found)


def volume(index: Index) -> int:
    """Elements of a box."""
    total = 1
    for start, stop in index:
        total *= stop - start
    return total


def overlap(one: Index, other: Index) -> Index | None:
    """The box that two have in common; None where it is empty."""
    both = []
    for (a, b), (c, d) in zip(one, other, strict=True):
        start, stop = max(a, c), min(b, d)
        if start >= stop:
            return None
        both.append((start, stop))
    return tuple(both)


def within(box: Index, outer: Index) -> tuple[slice, ...]:
    """Where a box lies in one around it."""
    return tuple(
        slice(start - origin, stop - origin)
        for (start, stop), (origin, _) in zip(box, outer, strict=True)
    )


def as_words(data_u8: np.ndarray, index: Index, dtype: np.dtype) -> np.ndarray:
    """Bytes of a box as unsigned integers in its shape."""
    words = data_u8.view(WORDS[dtype.itemsize])
    return words.reshape([stop - start for start, stop in index])


def _sharding(leaf: jax.ShapeDtypeStruct) -> jax.sharding.Sharding:
    if leaf.sharding is None:
        raise ValueError(f"every leaf must have a sharding, got {leaf!r}")
    return leaf.sharding
