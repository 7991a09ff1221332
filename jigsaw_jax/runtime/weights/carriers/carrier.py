"""What a carrier of payloads has to do; three of them stand beside this file.

    sender    ticket = put(key, pieces)    ...   drop(ticket)
    receiver               pieces = get(ticket, sizes)

A ticket travels beside the manifest and is the carrier's own business. No carrier is
believed: the receiver checks the number, the sizes and the checksums of what it gets.
"""

from collections.abc import Sequence
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
