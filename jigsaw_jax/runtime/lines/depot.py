"""Completions where they are trained: put by samplers, taken by who needs them.

    sampler --put--> Depot, in the learner's process --take--> the learner
                       --take, by a line--> its other hosts, a helper, the log

What the controller handles is a key: who sampled it, and a number. A completion stays
until the controller drops it, or the learner ends; the run then goes on from a
checkpoint, which needs none of them.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.lines.door import Address, Door, dial
from jigsaw_jax.runtime.lines.intake import Intake
from jigsaw_jax.runtime.lines.line import Line, LineClosedError
from jigsaw_jax.runtime.threads import ThreadFailed

# In which a depot lets in who dials.
DIAL_S = 5.0


class Key(NamedTuple):
    """The life of the worker that sampled a completion, and its number there."""

    source: str
    number: int


read_keys: Callable[[Any], list[Key]] = wire.rows_reader(Key)
_read_numbers = wire.reader(tuple[int, ...])


class DepotError(Exception):
    """A completion is not there."""


@runtime_checkable
class Shelf(Protocol):
    """Has completions, or gets them."""

    def take(self, keys: Sequence[Key], within_s: float) -> list[bytes]:
        """Completions by key.

        Args:
          keys: of them.
          within_s: how long to wait for those that are still on their way.

        Returns:
          One for each key, in order.

        Raises:
          DepotError: one is not there in time.
        """
        ...


class Depot:
    """Keeps completions by key; from any thread.

    Args:
      host: address to listen on.
      token: of the run.
      fail: takes what a thread died of.

    Attributes:
      address: of its door.
    """

    def __init__(
        self, host: str, token: str, fail: Callable[[ThreadFailed], None]
    ) -> None:
        self._changed = threading.Condition()
        self._kept: dict[Key, bytes] = {}
        self._fail = fail
        self._intake = Intake("depot", self._put, fail)
        self._door = Door(host, token, self._serve)
        self.address = self._door.address

    def put(self, keys: Sequence[Key], completions: Sequence[bytes]) -> None:
        """Keep completions; one that is there already is the same."""
        with self._changed:
            self._kept.update(zip(keys, completions, strict=True))
            self._changed.notify_all()

    def take(self, keys: Sequence[Key], within_s: float) -> list[bytes]:
        """As `Shelf` has it; they stay."""
        missing = list(keys)

        def are_there() -> bool:
            # Asked for each that comes, so of those alone that were missing before.
            missing[:] = [key for key in missing if key not in self._kept]
            return not missing

        with self._changed:
            if not self._changed.wait_for(are_there, within_s):
                raise DepotError(
                    f"{len(missing)} of {len(keys)} completions did not come, the "
                    f"first number {missing[0][1]} of {missing[0][0]}"
                )
            return [self._kept[key] for key in keys]

    def drop(self, keys: Iterable[Key]) -> None:
        """Nobody needs these any more."""
        with self._changed:
            for key in keys:
                self._kept.pop(key, None)

    def num_kept(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def close(self) -> None:
        """Let nobody in any more."""
        self._door.close()
        self._intake.close()

    # Who puts only puts, and is read with all others who do; who takes waits for an
    # answer, on a thread of the line's own.

    def _serve(self, source: str, line: Line) -> None:
        try:
            with contextlib.suppress(LineClosedError):
                while True:
                    head, body = line.receive()
                    name, *values = wire.read_list(wire.from_bytes(head))
                    if name == "put":
                        self._put(source, head, bytes(body))
                        self._intake.add(source, line)
                        return
                    self._answer(line, name, values)
        except BaseException as error:  # noqa: BLE001
            # The outermost handler of this thread: the run must hear of it.
            self._fail(ThreadFailed("depot", error))
        line.close()

    def _put(self, source: str, head: bytes, body: bytes) -> None:
        name, *told = wire.read_list(wire.from_bytes(head), 3)
        if name != "put":
            raise wire.WireError(f"request must be put, as before, got {name!r}")
        numbers, sizes = (_read_numbers(value) for value in told)
        pieces = _split(memoryview(body), sizes)
        self.put([Key(source, number) for number in numbers], pieces)

    def _answer(self, line: Line, name: Any, values: list[Any]) -> None:
        if name != "take":
            raise wire.WireError(f"request must be put or take, got {name!r}")
        keys, within_s = wire.read_list(values, 2)
        try:
            found = self.take(read_keys(keys), wire.read(float, within_s))
        except DepotError as error:
            line.send(wire.to_bytes([str(error)]))
            return
        line.send(wire.to_bytes([None, *map(len, found)]), b"".join(found))


class FarDepot:
    """A depot in another process; from any thread, one at a time.

    Its process has told where it is, so one that does not answer is gone for good.

    Args:
      address: of its door.
      token: of the run.
      name: of who asks.
    """

    def __init__(self, address: Address, token: str, name: str) -> None:
        self.address = address
        self._token = token
        self._name = name
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._is_gone = False

    def take(self, keys: Sequence[Key], within_s: float) -> list[bytes]:
        """As `Shelf` has it; a DepotError too where the depot is gone."""
        with self._lock:
            if self._is_gone:
                raise DepotError("the learner's depot is gone")
            try:
                return self._take(keys, within_s)
            except LineClosedError as error:
                self._is_gone = True
                raise DepotError(f"the learner's depot is gone: {error}") from None

    def close(self) -> None:
        """Hang up; who waits is told."""
        self._is_gone = True
        if self._line is not None:
            self._line.close()

    def _take(self, keys: Sequence[Key], within_s: float) -> list[bytes]:
        if self._line is None:
            self._line = dial(self.address, self._token, self._name, within_s=DIAL_S)
        # A process that has been stopped answers no more than one that is gone.
        self._line.wait_at_most(within_s + DIAL_S)
        self._line.send(wire.to_bytes(["take", keys, within_s]))
        head, body = self._line.receive()
        why, *sizes = wire.read_list(wire.from_bytes(head))
        if why is not None:
            raise DepotError(wire.read(str, why))
        return _split(memoryview(body), wire.read(tuple[int, ...], sizes))


def _split(body: memoryview, sizes: Sequence[int]) -> list[bytes]:
    """Copies, so that none keeps its neighbours in memory."""
    if min(sizes, default=0) < 0 or sum(sizes) != len(body):
        raise wire.WireError(f"sizes must sum to {len(body)}, got {sum(sizes)}")
    pieces, at = [], 0
    for size in sizes:
        pieces.append(bytes(body[at : at + size]))
        at += size
    return pieces


def read_address(value: Any) -> Address:
    """An address that came over the wire."""
    host, port = wire.read_list(value, 2)
    return wire.read(str, host), wire.read(int, port)
