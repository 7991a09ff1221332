"""Payloads as objects of Ray: shared memory on one node, pulled between nodes."""

from collections.abc import Sequence

import numpy as np
import ray
from ray.exceptions import RayError

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights.errors import CarrierError


class RayCarrier:
    """Puts pieces as one object; the ticket is its reference.

    Pieces are read where Ray's shared memory has them, without a copy. References keep
    objects alive: a receiver that holds the offer can finish after `drop`. Objects die
    with the process that put them.

    Args:
      clock: of the deadlines.
    """

    name = "ray"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def put(
        self, key: str, pieces: Sequence[np.ndarray], deadline_s: float
    ) -> ray.ObjectRef:
        """Copy the pieces into shared memory."""
        del deadline_s
        try:
            return ray.put(list(pieces))
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
