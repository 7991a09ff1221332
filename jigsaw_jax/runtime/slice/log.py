"""The log of a slice: host 0 decides and numbers, every host executes in that order.

    host 0   decide -> entry n, with its trace so far -> execute -> trace
    others   entry -> Reader: due? -> Trace: as host 0's? -> execute -> trace

A program that spans hosts waits for all of them, so they must start the same programs
in the same order. What time decides (which request is admitted, between which two
steps weights change) is decided on host 0 alone.
"""

import zlib
from typing import Any

# Entries that may wait for one before them.
AHEAD_MAX = 10_000


class DivergedError(Exception):
    """A host of a slice executes something else than host 0 does."""


class Reader:
    """Puts entries in order: one that is early waits, one that was there is let go."""

    def __init__(self) -> None:
        self._next = 1
        self._early: dict[int, Any] = {}

    def take(self, number: int, entry: Any) -> list[Any]:
        """Entries that are due now.

        Args:
          number: of the entry, from 1.
          entry: what came.

        Returns:
          The entries from the next one on, as far as they are here.

        Raises:
          DivergedError: too many wait for one that doesn't come.
        """
        if number >= self._next:
            self._early[number] = entry
        if len(self._early) > AHEAD_MAX:
            raise DivergedError(
                f"entry {self._next} of the log must come, got {number} and "
                f"{AHEAD_MAX} more behind it"
            )
        due = []
        while self._next in self._early:
            due.append(self._early.pop(self._next))
            self._next += 1
        return due


class Trace:
    """A running checksum over what a host was told and what came out of it.

    Attributes:
      value: so far.
    """

    def __init__(self) -> None:
        self.value = 0

    def add(self, data: bytes) -> None:
        """Take in an entry, or a result, that is the same on every host."""
        # The length too, so that where one piece ends is part of it.
        self.value = zlib.crc32(len(data).to_bytes(8, "little"), self.value)
        self.value = zlib.crc32(data, self.value)

    def check(self, theirs: int, doing: str) -> None:
        """Hold it against host 0's.

        Args:
          theirs: its trace at the same place of the log.
          doing: what comes next, for the error.

        Raises:
          DivergedError: the hosts have done something else.
        """
        if theirs != self.value:
            raise DivergedError(
                f"before {doing!r} the trace of this host must be host 0's, "
                f"{theirs:08x}, got {self.value:08x}; every host needs the same "
                "package, settings and kind of device"
            )
