"""What a carrier of payloads has to do; those there are stand beside this file.

    sender    ticket = put(key, pieces)    ...   drop(ticket)
    receiver               pieces = get(ticket, sizes)

    sender    ticket = promise(key)    ...   keep(ticket, pieces)    ...   drop(ticket)
    receiver               pieces, checksums = get_promised(key, ticket, sizes)

A ticket travels beside the manifest and is the carrier's own business. No carrier is
believed: the receiver checks the number, the sizes and the checksums of what it gets.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jigsaw_jax.runtime.weights.piece import Piece


@runtime_checkable
class Carrier(Protocol):
    """Moves bytes between processes; any thread may call it.

    Attributes:
      name: the same at both ends.
    """

    name: str

    def put(self, key: str, pieces: Sequence[Piece], deadline_s: float) -> Any:
        """Make a payload available.

        Args:
          key: that no other payload of the run has.
          pieces: each is written once, or taken as it lies; free to change when this
            returns, except where a carrier says otherwise.
          deadline_s: on `Clock`.

        Returns:
          The ticket.

        Raises:
          CarrierError: it can't be done, or not in time.
        """
        ...

    def get(
        self, ticket: Any, sizes: Sequence[int], deadline_s: float
    ) -> Sequence[np.ndarray]:
        """Fetch a payload.

        Args:
          ticket: from `put`.
          sizes: bytes of each piece.
          deadline_s: on `Clock`.

        Returns:
          The pieces, to read only; valid and unchanged as long as they are referred
          to.

        Raises:
          CarrierError: it is lost, or not here in time.
        """
        ...

    def drop(self, ticket: Any) -> None:
        """Free the payload; one that is gone already is no matter."""
        ...


@runtime_checkable
class Promising(Carrier, Protocol):
    """A carrier whose payloads can be asked for before they are made."""

    def promise(self, key: str) -> Any:
        """Say where a payload is to be had.

        Args:
          key: that no other payload of the run has.

        Returns:
          The ticket.

        Raises:
          CarrierError: it can't be done.
        """
        ...

    def keep(self, ticket: Any, pieces: Iterable[Piece]) -> None:
        """Make a promised payload available; nothing where it has been dropped.

        Args:
          ticket: from `promise`.
          pieces: free to change when this returns; where one can't be had, those that
            wait are told of that too.

        Raises:
          CarrierError: it can't be done; those that wait for it are told.
        """
        ...

    def get_promised(
        self, key: str, ticket: Any, sizes: Sequence[int], deadline_s: float
    ) -> tuple[Sequence[np.ndarray], Sequence[str]]:
        """Wait for a payload and fetch it.

        Args:
          key: of it; no checksum tells it from another of its size.
          ticket: from `promise`.
          sizes: bytes of each piece.
          deadline_s: on `Clock`.

        Returns:
          The pieces, as of `get`, and the checksum that the sender made of each.

        Raises:
          CarrierError: it is lost or dropped, or not here in time.
        """
        ...
