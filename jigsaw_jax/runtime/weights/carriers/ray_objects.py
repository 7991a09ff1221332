"""Payloads as objects of Ray: shared memory on one node, pulled between nodes."""

from collections.abc import Sequence

import numpy as np
import ray
from ray.exceptions import RayError

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.piece import Piece, gather


class RayCarrier:
    """Puts pieces as one object; the ticket is its reference.

    Pieces are read where Ray's shared memory has them, without a copy. References keep
    objects alive: a receiver that holds the offer can finish after `drop`. Once the
    process that put them is dead, objects are lost to other nodes.

    Args:
      clock: of the deadlines.
    """

    name = "ray"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # One block each for the payloads that are in hand at a time.
        self._arena = Arena(free_max=4)

    def put(
        self, key: str, pieces: Sequence[Piece], deadline_s: float
    ) -> ray.ObjectRef:
        """Copy the pieces into shared memory."""
        del deadline_s
        try:
            return ray.put(gather(pieces, self._arena))
        except RayError as error:
            raise CarrierError(f"Ray cannot take {key}: {error}") from error

    def get(
        self, ticket: ray.ObjectRef, sizes: Sequence[int], deadline_s: float
    ) -> list[np.ndarray]:
        """Wait for the object; see the pieces where they are."""
        del sizes
        left_s = max(deadline_s - self._clock.now_s(), 0.0)
        try:
            return ray.get(ticket, timeout=left_s)
        except RayError as error:
            raise CarrierError(f"Ray lost {ticket}: {error}") from error

    def drop(self, ticket: ray.ObjectRef) -> None:
        """Nothing: the object goes with the last reference to it."""
