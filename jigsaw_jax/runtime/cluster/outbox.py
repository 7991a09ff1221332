"""A worker's messages until the controller asks for them.

    threads --post--> pending --take--> one batch: messages, and completions beside

What is said of samples goes by tables: those between two other messages are one.
A batch is also the worker's heartbeat, so an empty one leaves after the time-out.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jigsaw_jax.records import Sample
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import tables
from jigsaw_jax.runtime.cluster.newest import Newest
from jigsaw_jax.runtime.sample_bytes import sample_bytes

# What is true of a worker in every epoch.
LASTING = frozenset({"hello", "failed", "leaving"})


class Outbox:
    """Collects messages from every thread of a worker.

    An epoch is one life of the run's control loop. When it goes on from a checkpoint,
    what was said before is let go, since its attempts may be counted anew.

    Args:
      clock: of this process.
      epoch: that it begins in.

    Attributes:
      clock: of this process.
      epoch: which life the messages belong to.
      num_asked: how often the controller has asked for some.
      facts: counts that travel with every batch.
      newest: weights that others come for themselves.
    """

    def __init__(self, clock: Clock, epoch: int) -> None:
        self.clock = clock
        self._changed = threading.Condition()
        self._items: collections.deque[tuple[list[Any], Sample | None, Sequence[Any]]]
        self._items = collections.deque()
        self._is_urgent = False
        self._named: dict[int, list[Any]] = {}
        self.epoch = epoch
        self.num_asked = 0
        self._num_taken = 0
        self.facts: Callable[[], dict[str, int]] = dict
        self.newest = Newest()

    def begin(self, epoch: int) -> None:
        """Let go what waits; what comes from now on belongs to `epoch`."""
        with self._changed:
            self.epoch = epoch
            kept = [item for item in self._items if item[0][0] in LASTING]
            self._items = collections.deque(kept)
            self._named.clear()

    def post(
        self,
        kind: str,
        *values: Any,
        sample: Sample | None = None,
        refs: Sequence[Any] = (),
        epoch: int | None = None,
    ) -> None:
        """Queue a message and let it go at once.

        Args:
          kind: selects who reads it.
          *values: plain values.
          sample: a completion that travels beside it.
          refs: objects in Ray's store that it names, for `named`.
          epoch: that it belongs to, where that may be over by now.
        """
        with self._changed:
            if epoch is not None and epoch != self.epoch:
                return
            self._items.append(([kind, *values], sample, refs))
            self._is_urgent = True
            self._changed.notify()

    def interval(
        self, track: str, name: str, start_s: float, end_s: float, **fields: Any
    ) -> None:
        """Queue a line of the event log, to travel with the next message."""
        item = ["interval", track, name, start_s, end_s, fields]
        with self._changed:
            self._items.append((item, None, ()))

    def take(self, timeout_s: float, linger_s: float = 0.0) -> tuple[bytes, bytes]:
        """Wait for messages, at most this long.

        Args:
          timeout_s: until an empty batch is returned.
          linger_s: what follows the first message within this time travels with it.

        Returns:
          The batch's head, and the completions in it one behind the other. The head
          has a number for `named` where messages name objects.
        """
        with self._changed:
            self._num_taken += 1
            if self._changed.wait_for(lambda: self._is_urgent, timeout_s):
                # The lock is free meanwhile, so that others can add to it.
                self._changed.wait_for(lambda: False, linger_s)
            items, self._items = self._items, collections.deque()
            self._is_urgent = False
            epoch = self.epoch
        pages = _Pages()
        for item, sample, named in items:
            pages.add(item, sample, named)
        head = {
            "epoch": epoch,
            "now_s": self.clock.now_s(),
            "facts": self.facts(),
            "items": pages.messages(),
            "forms": list(pages.forms),
            "named": self._name(pages.refs) if pages.refs else 0,
        }
        return wire.to_bytes(head), b"".join(pages.parts)

    def _name(self, refs: list[Any]) -> int:
        with self._changed:
            self._named[self._num_taken] = refs
        return self._num_taken

    def named(self, number: int) -> list[Any]:
        """The objects that a batch names, once."""
        with self._changed:
            return self._named.pop(number, [])


class _Pages:
    """Messages of one batch as they are written.

    forms: of intervals: name and fields, which many in a batch have alike.
    parts: completions.
    refs: objects that messages name.
    """

    def __init__(self) -> None:
        self.forms: dict[tuple[str, ...], int] = {}
        self.parts: list[bytes] = []
        self.refs: list[Any] = []
        self._size = 0
        self._messages: list[list[Any]] = []
        # Of samples, since the last message that is not of one.
        self._rows: dict[str, list[list[Any]]] | None = None

    def add(self, item: list[Any], sample: Sample | None, named: Sequence[Any]) -> None:
        kind, *values = item
        if kind in tables.ROWS:
            if self._rows is None:
                self._rows = {}
                self._messages.append(["samples", self._rows])
            self._rows.setdefault(kind, []).append(values)
            return
        if kind == "interval":
            # A line of the log, which may stand before or behind what else is said.
            self._messages.append(self._filled(*values))
            return
        self._rows = None
        if sample is not None:
            self.parts.append(sample_bytes(sample))
            item = [*item, self._size, len(self.parts[-1])]
            self._size += len(self.parts[-1])
        if named:
            item = [*item, len(self.refs), len(named)]
            self.refs.extend(named)
        self._messages.append(item)

    def _filled(
        self, track: str, name: str, start_s: float, end_s: float, fields: Any
    ) -> list[Any]:
        form = self.forms.setdefault((name, *fields), len(self.forms))
        return ["interval", form, track, start_s, end_s, *fields.values()]

    def messages(self) -> list[list[Any]]:
        """All that was added; what is said of samples as bytes of its own."""
        return [
            [message[0], wire.to_bytes(message[1])]
            if message[0] == "samples"
            else message
            for message in self._messages
        ]


class Lanes:
    """Names the worker in intervals, and in the tracks of slots, numbered from 0.

    Args:
      name: of the worker.
      outbox: takes them.
    """

    def __init__(self, name: str, outbox: Outbox) -> None:
        self._name = name
        self._outbox = outbox

    def interval(
        self, track: str, name: str, start_s: float, end_s: float, **fields: Any
    ) -> None:
        """As in the event log."""
        head, slash, lane = track.partition("/")
        if slash:
            track = f"{head}/{self._name}/{lane}"
        self._outbox.interval(track, name, start_s, end_s, worker=self._name, **fields)
