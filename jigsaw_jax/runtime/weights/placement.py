"""Boxes of arrays: what a host's devices want, filled from boxes cut otherwise."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jigsaw_jax.runtime.weights.arena import Arena, aligned
from jigsaw_jax.runtime.weights.manifest import Index

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A box of a leaf that this host holds.

    Attributes:
      index: of the box.
      words: the values as unsigned integers of their size.
    """

    index: Index
    words: np.ndarray


class Host:
    """The boxes of all leaves on this host's devices, in one block of memory.

    Args:
      wanted: shape and sharding of each leaf.
      sent: the type that each arrives in.
      arena: of the block.
      boxes: `local_boxes` of each leaf, where that is known already.
    """

    def __init__(
        self,
        wanted: Sequence[jax.ShapeDtypeStruct],
        sent: Sequence[np.dtype],
        arena: Arena,
        boxes: Sequence[Sequence[Index]] | None = None,
    ) -> None:
        self._wanted = wanted
        self._sent = sent
        boxes = [local_boxes(leaf) for leaf in wanted] if boxes is None else boxes
        sizes = [
            volume(index) * dtype.itemsize
            for of_leaf, dtype in zip(boxes, sent, strict=True)
            for index in of_leaf
        ]
        block = arena.lease(sum(map(aligned, sizes)))
        self._targets: list[list[Target]] = []
        start = 0
        for of_leaf, dtype in zip(boxes, sent, strict=True):
            self._targets.append([])
            for index in of_leaf:
                size = volume(index) * dtype.itemsize
                words = block[start : start + size].view(_WORDS[dtype.itemsize])
                start += aligned(size)
                words = words.reshape([stop - begin for begin, stop in index])
                self._targets[-1].append(Target(index, words))

    def needs(self, leaf: int, index: Index) -> bool:
        """Whether any element of a box is on this host."""
        return any(overlap(index, t.index) is not None for t in self._targets[leaf])

    def write(self, leaf: int, index: Index, data_u8: np.ndarray) -> None:
        """Copy what this host holds of a box out of its bytes."""
        words = as_words(data_u8, index, self._sent[leaf])
        for target in self._targets[leaf]:
            both = overlap(index, target.index)
            if both is not None:
                target.words[within(both, target.index)] = words[within(both, index)]

    def read(self, leaf: int, index: Index) -> tuple[np.ndarray, bool]:
        """Bytes of a box, zero where they aren't here, and whether all are."""
        size = volume(index) * self._sent[leaf].itemsize
        data_u8 = np.zeros(size, np.uint8)
        words = as_words(data_u8, index, self._sent[leaf])
        here = 0
        for target in self._targets[leaf]:
            both = overlap(index, target.index)
            if both is not None:
                words[within(both, index)] = target.words[within(both, target.index)]
                here += volume(both)
        return data_u8, here == volume(index)

    def place(self) -> list[jax.Array]:
        """The leaves on their devices, in the type in which they were sent.

        On CPU the arrays may share this block's memory, which nobody writes again.
        """
        # One call a leaf: to put each box and join them takes five times as long.
        arrays: list[jax.Array] = [
            jax.make_array_from_callback(leaf.shape, _sharding(leaf), box)
            for leaf, box in zip(self._wanted, self._boxes(), strict=True)
        ]
        jax.block_until_ready(arrays)
        return arrays

    def _boxes(self) -> Iterator[Callable[[Any], np.ndarray]]:
        """For each leaf, its values at an index as JAX names it."""
        for leaf, targets, dtype in zip(
            self._wanted, self._targets, self._sent, strict=True
        ):
            views = {target.index: target.words.view(dtype) for target in targets}
            yield functools.partial(_at, views, leaf.shape)


def _at(views: dict[Index, np.ndarray], shape: Sequence[int], slices: Any) -> Any:
    return views[bounds(slices or (), shape)]


def local_boxes(leaf: jax.ShapeDtypeStruct) -> tuple[Index, ...]:
    """The boxes that this host's devices hold, each once."""
    places = _sharding(leaf).addressable_devices_indices_map(leaf.shape)
    found = (bounds(slices or (), leaf.shape) for slices in places.values())
    return tuple(dict.fromkeys(found))


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
    words = data_u8.view(_WORDS[dtype.itemsize])
    return words.reshape([stop - start for start, stop in index])


def _sharding(leaf: jax.ShapeDtypeStruct) -> jax.sharding.Sharding:
    if leaf.sharding is None:
        raise ValueError(f"every leaf must have a sharding, got {leaf!r}")
    return leaf.sharding
