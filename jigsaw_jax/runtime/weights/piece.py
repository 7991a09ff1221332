"""Bytes on their way into a payload, in parts until a carrier has them in one.

A learner's shards are seldom cut as a sampler's: what is one box there lies in several
here. A carrier whose memory the receiver sees has them written there at once; others
have them gathered first.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from jigsaw_jax.runtime.weights.arena import Arena, aligned
from jigsaw_jax.runtime.weights.checksum import checksum, checksum_of
from jigsaw_jax.runtime.weights.errors import CarrierError

# Of a box that are written before their checksum: they are in the cache still.
BAND_BYTES = 4 * 2**20


@dataclasses.dataclass(slots=True)
class Piece:
    """One piece of a payload; it is written, or taken as it lies, once a carrier.

    Attributes:
      shape: of the box.
      parts: that fill it, each element once: values, and where they belong.
      checksum: of all its bytes; empty before it was written or taken.
    """

    shape: tuple[int, ...]
    parts: Sequence[tuple[np.ndarray, tuple[slice, ...]]]
    checksum: str = ""

    @classmethod
    def of(cls, data_u8: np.ndarray) -> "Piece":
        """A piece of bytes that lie together."""
        return cls(data_u8.shape, [(data_u8, (slice(None),))])

    @property
    def num_bytes(self) -> int:
        """Bytes of the box."""
        return math.prod(self.shape) * self.parts[0][0].itemsize

    def write(self, into_u8: np.ndarray) -> None:
        """Write the box and note its checksum, while the bytes are in the cache."""
        self.checksum = checksum_of(self._bands(into_u8))

    def _bands(self, into_u8: np.ndarray) -> Iterator[np.ndarray]:
        """Write a few rows after another, over all parts; the bytes of each few."""
        box = into_u8.view(self.parts[0][0].dtype).reshape(self.shape)
        if self.num_bytes <= BAND_BYTES or not self.shape:
            for values, place in self.parts:
                box[place] = values
            yield into_u8
            return
        row_bytes = self.num_bytes // len(box)
        step = max(1, BAND_BYTES // row_bytes)
        for start in range(0, len(box), step):
            stop = min(start + step, len(box))
            for values, (rows, *place) in self.parts:
                first, last, _ = rows.indices(len(box))
                a, b = max(start, first), min(stop, last)
                if a < b:
                    box[(slice(a, b), *place)] = values[a - first : b - first]
            yield into_u8[start * row_bytes : stop * row_bytes]

    def take(self) -> np.ndarray | None:
        """Its bytes where they lie, with the checksum noted; None where in parts."""
        values = self.parts[0][0]
        if len(self.parts) > 1 or not values.flags.c_contiguous:
            return None
        data_u8 = values.reshape(-1).view(np.uint8)
        self.checksum = checksum(data_u8)
        return data_u8


def gather(pieces: Sequence[Piece], arena: Arena) -> list[np.ndarray]:
    """Contiguous bytes of pieces, copied only where they lie in parts.

    Args:
      pieces: of one payload.
      arena: of the copies.

    Returns:
      The bytes of each, to read only.
    """
    found = [piece.take() for piece in pieces]
    sizes = [
        aligned(piece.num_bytes)
        for piece, data_u8 in zip(pieces, found, strict=True)
        if data_u8 is None
    ]
    # An empty lease has a page, too.
    block, start = arena.lease(sum(sizes)) if sizes else np.empty(0, np.uint8), 0
    for place, piece in enumerate(pieces):
        if found[place] is None:
            into_u8 = block[start : start + piece.num_bytes]
            piece.write(into_u8)
            found[place] = into_u8
            start += aligned(piece.num_bytes)
    return [data_u8 for data_u8 in found if data_u8 is not None]


def laid_out(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces of these sizes start in one block, and bytes of all."""
    starts = list(itertools.accumulate(map(aligned, sizes), initial=0))
    return starts[:-1], starts[-1]


def write(pieces: Sequence[Piece], block_u8: np.ndarray) -> None:
    """Write pieces into one block, as they are laid out."""
    starts, _ = laid_out([piece.num_bytes for piece in pieces])
    for start, piece in zip(starts, pieces, strict=True):
        piece.write(block_u8[start : start + piece.num_bytes])


def split(block_u8: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The pieces in a block.

    Args:
      block_u8: from `write`, or longer.
      sizes: bytes of each piece.

    Returns:
      Views of the block.

    Raises:
      CarrierError: it is too short.
    """
    starts, total = laid_out(sizes)
    if len(block_u8) < total:
        raise CarrierError(f"a payload must have {total} bytes, got {len(block_u8)!r}")
    return [
        block_u8[start : start + size]
        for start, size in zip(starts, sizes, strict=True)
    ]
