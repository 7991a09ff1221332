"""Payloads over JAX's own transfer server (`jax.experimental.transfer`).

Bytes, not arrays, are offered, from the host's CPU devices: the server takes arrays of
equal bytes and another type or layout for the same, and between meshes of unequal size
it fails. Its other traps, and what is done about each:

    an offer is taken once             one offer for each receiver
    an unclaimed offer holds memory    it expires, at the latest with the next `put`
    a pull of an unknown, used or      results are polled until the deadline and then
      expired offer never returns        left; nothing waits for them
    its wall clock                     naive local time, as the server reads it
"""

import datetime
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import transfer

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.piece import Piece, gather

_POLL_S = 0.001

# (address, id of the offer for each receiver).
Ticket = tuple[str, tuple[int, ...]]


class TransferCarrier:
    """Offers pieces to a known number of receivers; the ticket is where they are.

    A piece must not change until its offer has expired.

    Args:
      address: to listen at, as "10.0.0.7:0"; port 0 is any that is free.
      receivers: how many there are.
      receiver: which of them this is, at their end.
      offer_s: after which an offer expires.
      clock: of the deadlines.
    """

    name = "transfer"

    def __init__(
        self,
        address: str,
        *,
        receivers: int = 1,
        receiver: int = 0,
        offer_s: float = 60.0,
        clock: Clock,
    ) -> None:
        self._device = jax.local_devices(backend="cpu")[0]
        client = self._device.client
        self._server = transfer.start_transfer_server(client, address, [address])
        self._receivers = receivers
        self._receiver = receiver
        self._offer_s = offer_s
        self._clock = clock
        # Of pieces that lay in parts; each block is held as long as its offer.
        self._arena = Arena(free_max=32)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._connections: dict[str, transfer.TransferConnection] = {}

    def put(self, key: str, pieces: Sequence[Piece], deadline_s: float) -> Ticket:
        """Offer the pieces where they are, once for each receiver."""
        del deadline_s
        found = gather(pieces, self._arena)
        arrays = jax.device_put([p for p in found if len(p)], self._device)
        # The server takes local time and ignores a zone.
        until = datetime.datetime.now() + datetime.timedelta(seconds=self._offer_s)  # noqa: DTZ005
        ids = []
        try:
            for _ in range(self._receivers):
                with self._lock:
                    ids.append(next(self._ids))
                self._server.await_pull(ids[-1], arrays, timeout=until)
        except (JaxRuntimeError, ValueError) as error:
            raise CarrierError(f"JAX cannot offer {key}: {error}") from error
        return self._server.address(), tuple(ids)

    def get(
        self, ticket: Ticket, sizes: Sequence[int], deadline_s: float
    ) -> list[np.ndarray]:
        """Pull this receiver's offer."""
        address, ids = ticket
        if self._receiver >= len(ids):
            raise CarrierError(
                f"receiver must be under {len(ids)}, got {self._receiver!r}"
            )
        place = jax.sharding.SingleDeviceSharding(self._device)
        specs = [
            jax.ShapeDtypeStruct((size,), np.uint8, sharding=place)
            for size in sizes
            if size
        ]
        try:
            pulled = self._connection(address).pull(ids[self._receiver], specs)
            self._wait(pulled, deadline_s)
            full = iter([np.asarray(array) for array in pulled])
        except (JaxRuntimeError, ValueError) as error:
            # The next try gets a connection of its own.
            with self._lock:
                self._connections.pop(address, None)
            raise CarrierError(f"JAX cannot pull from {address}: {error}") from error
        return [next(full) if size else np.zeros(0, np.uint8) for size in sizes]

    def drop(self, ticket: Ticket) -> None:
        """Nothing: an offer can't be withdrawn, it expires."""

    def _connection(self, address: str) -> Any:
        with self._lock:
            if address not in self._connections:
                self._connections[address] = self._server.connect(address)
            return self._connections[address]

    def _wait(self, pulled: Sequence[Any], deadline_s: float) -> None:
        pause = threading.Event()
        for array in pulled:
            while not array.is_ready():
                if self._clock.now_s() >= deadline_s:
                    raise CarrierError("JAX did not deliver in time")
                pause.wait(_POLL_S)
