"""Payloads as objects of Ray: shared memory on one node, pulled between nodes."""

from collections.abc import Sequence

import numpy as np
import ray
from ray.exceptions import RayError

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.piece import Piece, laid_out, split, write


class RayCarrier:
    """Puts pieces as one object of bytes; the ticket is its reference.

    Pieces are read where Ray's shared memory has them, without a copy. References keep
    objects alive: a receiver that holds the offer can finish after `drop`. Once the
    process that put them is dead, objects are lost to other nodes.

    Args:
      clock: of the deadlines.
    """

    name = "ray"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Of the payloads that are in hand at a time, which are of several sizes.
        self._arena = Arena(free_max=8)

    def put(
        self, key: str, pieces: Sequence[Piece], deadline_s: float
    ) -> ray.ObjectRef:
        """Copy the pieces into shared memory."""
        del deadline_s
        try:
            # One array: Ray starts threads for the copy of each, a seventh of the time.
            _, size = laid_out([piece.num_bytes for piece in pieces])
            block = self._arena.lease(size)
            write(pieces, block)
            return ray.put(block)
        except RayError as error:
            raise CarrierError(f"Ray cannot take {key}: {error}") from error

    def get(
        self, ticket: ray.ObjectRef, sizes: Sequence[int], deadline_s: float
    ) -> list[np.ndarray]:
        """Wait for the object; see the pieces where they are."""
        left_s = max(deadline_s - self._clock.now_s(), 0.0)
        try:
            block = ray.get(ticket, timeout=left_s)
        except RayError as error:
            raise CarrierError(f"Ray lost {ticket}: {error}") from error
        if not isinstance(block, np.ndarray) or block.dtype != np.uint8:
            raise CarrierError(f"a payload must be bytes, got {type(block)!r}")
        return split(block, sizes)

    def drop(self, ticket: ray.ObjectRef) -> None:
        """Nothing: the object goes with the last reference to it."""
