"""The boxes in which a host sends its shards: as the receivers' devices hold them.

A receiver takes a piece that is a whole box of its own as it is, without a copy.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from jigsaw_jax.runtime.weights.manifest import Index, Leaf
from jigsaw_jax.runtime.weights.piece import Piece
from jigsaw_jax.runtime.weights.placement import overlap, volume, within
from jigsaw_jax.runtime.weights.snapshot import Box, Snapshot

# Small enough for threads to share a version evenly, large enough for Ray's 1 ms each.
PAYLOAD_BYTES = 16 * 2**20
# A payload may be a file or a descriptor, and of those there are not many.
PAYLOADS_MAX = 32

# Number of a box of the snapshot, what is taken of it, and where that belongs.
_Part = tuple[int, tuple[slice, ...], tuple[slice, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """One box to send.

    Attributes:
      leaf: its place in the tree.
      index: of the box.
      shape: of the box.
      parts: of the snapshot's boxes that fill it.
    """

    leaf: int
    index: Index
    shape: tuple[int, ...]
    parts: tuple[_Part, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """A version's weights on this host, and the boxes in which they are sent.

    Attributes:
      taken: the weights.
      cuts: in the order of the leaves; together all that was taken, once.
    """

    taken: Snapshot
    cuts: tuple[Cut, ...]

    @property
    def number(self) -> int:
        """Of the version."""
        return self.taken.version

    def piece(self, cut: Cut) -> Piece:
        """The bytes of a box."""
        boxes = self.taken.boxes
        # The dots make a view of an array of no dims, too.
        parts = [
            (boxes[box].words[(*what, ...)], where) for box, what, where in cut.parts
        ]
        return Piece(cut.shape, parts)

    def sizes(self) -> list[int]:
        """Bytes of each box."""
        widths = [jnp.dtype(leaf.sent).itemsize for leaf in self.taken.leaves]
        return [volume(cut.index) * widths[cut.leaf] for cut in self.cuts]

    def batches(self) -> list[Sequence[Cut]]:
        """Neighbours together, up to `PAYLOAD_BYTES` or one larger box."""
        sizes = self.sizes()
        size_max = max(PAYLOAD_BYTES, sum(sizes) // PAYLOADS_MAX)
        found, start, total = [], 0, 0
        for place, size in enumerate(sizes):
            if place > start and total + size > size_max:
                found.append(self.cuts[start:place])
                start, total = place, 0
            total += size
        return [*found, self.cuts[start:]] if self.cuts else []


def cut(
    taken: Snapshot, wanted: Mapping[str, Sequence[int]], last: Version | None = None
) -> Version:
    """Cut a snapshot.

    Args:
      taken: of this host.
      wanted: shape of the boxes that receivers hold, by the leaf's name. Leaves that
        are not named, or of which other hosts have a part, go as their shards are cut.
      last: whose cuts are taken where they fit.

    Returns:
      The snapshot with its cuts.
    """
    if last is not None and _outline(last.taken) == _outline(taken):
        return Version(taken, last.cuts)
    boxes: list[list[int]] = [[] for _ in taken.leaves]
    for number, box in enumerate(taken.boxes):
        boxes[box.leaf].append(number)
    found = []
    for place, (leaf, own) in enumerate(zip(taken.leaves, boxes, strict=True)):
        indices = [taken.boxes[number].index for number in own]
        size = math.prod(leaf.shape)
        if size and leaf.name in wanted and sum(map(volume, indices)) == size:
            indices = _grid(leaf, wanted[leaf.name])
        found += [_cut(place, index, own, taken.boxes) for index in indices]
    return Version(taken, tuple(found))


def _outline(taken: Snapshot) -> Any:
    return taken.leaves, [(box.leaf, box.index) for box in taken.boxes]


def _grid(leaf: Leaf, shape: Sequence[int]) -> list[Index]:
    cuts = [
        [(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(leaf.shape, shape, strict=True)
    ]
    return list(itertools.product(*cuts))


def _cut(place: int, index: Index, own: list[int], boxes: Sequence[Box]) -> Cut:
    parts = []
    for number in own:
        both = overlap(index, boxes[number].index)
        if index == boxes[number].index:
            # Also one of no elements, which overlaps nothing.
            both = index
        if both is not None:
            what, where = within(both, boxes[number].index), within(both, index)
            parts.append((number, what, where))
    shape = tuple(stop - start for start, stop in index)
    return Cut(place, index, shape, tuple(parts))
