"""One host's place in its slice, and how word goes between host 0 and the others.

    host 0   write(entry) ==Ray, in order==> the others' desks
             tell(key)    =================> hear(key)
             gather(key)  <================= answer(key)

A slice of one host has nobody to tell: all of this does nothing there.
"""

import threading
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from jigsaw_jax.runtime import wire

TELL = "tell"


class HostLostError(Exception):
    """Another host of this slice is gone, and with it the slice."""


class Peers:
    """A host and its slice; from any thread.

    Args:
      index: of this host; 0 decides.
      others: Ray's handles of hosts 1, 2, ...; on host 0 alone.
      num_hosts: of the slice.
    """

    def __init__(
        self, index: int = 0, others: Sequence[Any] = (), *, num_hosts: int = 1
    ) -> None:
        self.index = index
        self.num_hosts = num_hosts
        self._others = others
        self._lock = threading.Lock()
        self._number = 0
        self._entries: list[Any] = []
        self._refs: list[Any] = []
        self._changed = threading.Condition()
        self._box: dict[str, tuple[list[Any], list[Any]]] = {}

    @property
    def leads(self) -> bool:
        """Whether this is host 0, which alone speaks for the slice."""
        return self.index == 0

    @property
    def is_alone(self) -> bool:
        """Whether the slice is this host."""
        return self.num_hosts == 1

    # Host 0.

    def write(
        self, name: str, *values: Any, refs: Sequence[Any] = (), can_wait: bool = False
    ) -> None:
        """Add an entry to the log.

        Args:
          name: of what to do.
          *values: plain values.
          refs: objects in Ray's store that they name.
          can_wait: it starts no program, so it may travel with the next entry.
        """
        if not self._others:
            return
        with self._lock:
            self._number += 1
            first = len(self._refs)
            self._entries.append([self._number, name, list(values), first, len(refs)])
            self._refs.extend(refs)
            if can_wait:
                return
            data = wire.to_bytes(self._entries)
            refs, self._entries, self._refs = self._refs, [], []
            for other in self._others:
                # Ray orders the calls of one caller; a dead host is told by its poll.
                other.follow.remote(data, refs)

    def tell(self, key: str, *values: Any, refs: Sequence[Any] = ()) -> None:
        """Say what another host is waiting for in the middle of an entry."""
        self.write(TELL, key, list(values), refs=refs)

    def gather(self, key: str) -> list[tuple[list[Any], list[Any]]]:
        """Wait for every other host's answer.

        Args:
          key: of the question; new each time.

        Returns:
          Values and objects of hosts 1, 2, ...

        Raises:
          HostLostError: one of them is dead.
        """
        if not self._others:
            # Ray would start itself for a call about nothing.
            return []
        try:
            found = ray.get([other.collect.remote(key) for other in self._others])
        except RayError as error:
            raise HostLostError(str(error).strip().split("\n")[0]) from error
        return [(wire.read_list(wire.from_bytes(data)), refs) for data, refs in found]

    # The others.

    def put(self, key: str, values: list[Any], refs: list[Any]) -> None:
        """Leave something under a key for whoever waits for it here."""
        with self._changed:
            self._box[key] = (values, refs)
            self._changed.notify_all()

    def hear(self, key: str) -> tuple[list[Any], list[Any]]:
        """Wait for what host 0 tells: values and objects."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._box)
            return self._box.pop(key)

    def answer(self, key: str, *values: Any, refs: Sequence[Any] = ()) -> None:
        """Leave an answer for host 0."""
        self.put(key, list(values), list(refs))

    def collect(self, key: str) -> tuple[bytes, list[Any]]:
        """Host 0 has come for an answer: it waits until that is there."""
        values, refs = self.hear(key)
        return wire.to_bytes(values), refs
