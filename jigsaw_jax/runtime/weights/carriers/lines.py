"""Payloads over connections of our own, from memory to memory, while they are made.

    sender     promise -> ticket ........ keep: written, checksums known ... drop
    receiver            get -> dial, ask, wait ..... checksums, bytes -> pieces

A promised payload is asked for before it is there, so a receiver has the first ones
while the sender still writes the last. Nothing lies between the memory of the two ends
but the network.
"""

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.lines.door import Address, Door, dial, make_token
from jigsaw_jax.runtime.lines.line import HEAD_BYTES_MAX, Line, LineClosedError
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.cores import give_way
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.piece import Piece, laid_out, split, write

# Sent as one; large, since each costs a turn of the interpreter at either end.
FRAME_BYTES = 4 << 20
# So often a sender says that it is still at work on what was promised.
WORD_S = 4.0
# Either end gives up a line on which the other does nothing for so long.
SILENT_S = 20.0
# In which a sender that lives, and has listened since its promise, answers.
DIAL_S = 1.0
# A receiver leaves a line that it has not used for so long, the sender later.
IDLE_S = 60.0
_REQUEST_BYTES_MAX = 1024

# Host and port of the sender's door, its token, the payload's key.
Ticket = tuple[str, int, str, str]
_Where = tuple[Address, str]


class _Kept(NamedTuple):
    """A payload, or why there is none."""

    fault: str | None
    checksums: list[str]
    block_u8: np.ndarray


class LineCarrier:
    """Sends payloads out of the sender's memory to each receiver that asks.

    The sender's network carries a version once for every receiver. A ticket has the
    token of the sender's door: who may read the offer may fetch.

    Args:
      host: address of this host; a sender listens on it.
      clock: of the deadlines.
    """

    name = "line"

    def __init__(self, host: str, *, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        # Blocks live as long as their version, at either end.
        self._arena = Arena(free_max=40)
        self._changed = threading.Condition()
        # None is a promise; what is not here is gone.
        self._kept: dict[str, _Kept | None] = {}
        self._token = make_token()
        self._door: Door | None = None
        # Lines that nobody uses, and since when.
        self._idle: dict[_Where, list[tuple[float, Line]]] = {}

    def close(self) -> None:
        """Let nobody in any more, and hang up."""
        if self._door is not None:
            self._door.close()
        with self._changed:
            self._leave(self._clock.now_s() + 1.0)

    def _lease(self, num_bytes: int) -> np.ndarray:
        """Memory that was used before by any payload of about this size."""
        # Of few sizes, so that what one version frees fits another; only what is
        # written to is taken of the system.
        return self._arena.lease(1 << max(num_bytes - 1, 0).bit_length())[:num_bytes]

    # The sender's end.

    def promise(self, key: str) -> Ticket:
        """Say where a payload is to be had that is to be kept, or dropped."""
        with self._changed:
            try:
                if self._door is None:
                    self._door = Door(self._host, self._token, self._serve)
            except OSError as error:
                raise CarrierError(f"cannot listen: {error}") from error
            self._kept[key] = None
            return (*self._door.address, self._token, key)

    def keep(self, ticket: Ticket, pieces: Iterable[Piece]) -> None:
        """Write the pieces to where they are sent from."""
        key = ticket[-1]
        found = _Kept(f"{key} could not be written", [], np.empty(0, np.uint8))
        try:
            own = list(pieces)
            _, size = laid_out([piece.num_bytes for piece in own])
            block_u8 = self._lease(size)
            write(own, block_u8)
            found = _Kept(None, [piece.checksum for piece in own], block_u8)
        except OSError as error:
            raise CarrierError(f"no memory for {key}: {error}") from error
        finally:
            # Whatever it was, those that wait are told.
            with self._changed:
                if key in self._kept:
                    self._kept[key] = found
                    self._changed.notify_all()

    def put(self, key: str, pieces: Sequence[Piece], deadline_s: float) -> Ticket:
        """Promise a payload and keep it."""
        del deadline_s
        ticket = self.promise(key)
        self.keep(ticket, pieces)
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Forget it; those that are being sent it have it still."""
        with self._changed:
            self._kept.pop(ticket[-1], None)
            self._changed.notify_all()

    def _serve(self, name: str, line: Line) -> None:
        """What one receiver asks for, one after another, on a thread of its own."""
        del name
        give_way()
        # It hears of the end, whatever that was, if it is there; one that is gone, or
        # none of ours, is no matter.
        with (
            contextlib.closing(line),
            contextlib.suppress(LineClosedError, wire.WireError),
        ):
            while True:
                line.wait_at_most(2 * IDLE_S)
                head, _body = line.receive(_REQUEST_BYTES_MAX)
                self._answer(line, wire.read(str, wire.from_bytes(head)))

    def _answer(self, line: Line, key: str) -> None:
        line.wait_at_most(SILENT_S)
        while not self._is_settled(key):
            line.send(b"")
        with self._changed:
            kept = self._kept.get(key)
        if kept is None:
            kept = _Kept(f"{key} is gone", [], np.empty(0, np.uint8))
        data = kept.block_u8.data
        line.send(wire.to_bytes([key, kept.fault, len(data), kept.checksums]))
        for start in range(0, len(data), FRAME_BYTES):
            line.send(b"", data[start : start + FRAME_BYTES])

    def _is_settled(self, key: str) -> bool:
        """Whether it is kept or gone; waits a little where it is a promise."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._kept.get(key, key) is not None, WORD_S
            )

    # The receiver's end.

    def get(
        self, ticket: Any, sizes: Sequence[int], deadline_s: float
    ) -> list[np.ndarray]:
        """Fetch a payload."""
        return self._get(*_read(ticket), sizes, deadline_s)[0]

    def get_promised(
        self, key: str, ticket: Any, sizes: Sequence[int], deadline_s: float
    ) -> tuple[list[np.ndarray], tuple[str, ...]]:
        """Wait for a payload; with the checksums that its sender has made."""
        where, named = _read(ticket)
        if named != key:
            raise CarrierError(f"a ticket must be of {key}, got one of {named!r}")
        return self._get(where, key, sizes, deadline_s)

    def _get(
        self, where: _Where, key: str, sizes: Sequence[int], deadline_s: float
    ) -> tuple[list[np.ndarray], tuple[str, ...]]:
        _, total = laid_out(sizes)
        line = self._take_idle(where)
        is_new = line is None
        while True:
            if line is None:
                line = self._dial(where, key, deadline_s)
            try:
                fault, checksums, block_u8 = self._ask(line, key, total, deadline_s)
                break
            except (LineClosedError, wire.WireError) as error:
                line.close()
                # One that was idle may have been closed long ago.
                if is_new:
                    raise CarrierError(f"{key} is lost: {error}") from error
            line, is_new = None, True
        self._give_back(where, line)
        if fault is not None:
            raise CarrierError(fault)
        return split(block_u8, sizes), checksums

    def _dial(self, where: _Where, key: str, deadline_s: float) -> Line:
        address, token = where
        within_s = min(deadline_s - self._clock.now_s(), DIAL_S)
        try:
            return dial(address, token, "weights", within_s=within_s)
        except LineClosedError as error:
            raise CarrierError(f"{key} is lost: {error}") from error

    def _ask(
        self, line: Line, key: str, total: int, deadline_s: float
    ) -> tuple[str | None, tuple[str, ...], np.ndarray]:
        head = b""
        line.wait_at_most(SILENT_S)
        line.send(wire.to_bytes(key))
        while not head:
            self._bound(line, deadline_s)
            head, _ = line.receive(HEAD_BYTES_MAX)
        named, fault, size, checksums = wire.read_list(wire.from_bytes(head), 4)
        if fault is not None:
            return wire.read(str, fault), (), np.empty(0, np.uint8)
        if (named, size) != (key, total):
            raise LineClosedError(f"it must have {total} bytes, got {size!r}")
        block_u8 = self._lease(total)
        view, at = block_u8.data, 0
        while at < total:
            self._bound(line, deadline_s)
            _, num = line.receive_into(view[at:])
            if not num:
                raise LineClosedError("it ends too early")
            at += num
        return None, wire.read(tuple[str, ...], checksums), block_u8

    def _bound(self, line: Line, deadline_s: float) -> None:
        left_s = deadline_s - self._clock.now_s()
        if left_s <= 0:
            raise LineClosedError("it did not come in time")
        line.wait_at_most(min(left_s, SILENT_S))

    def _take_idle(self, where: _Where) -> Line | None:
        now_s = self._clock.now_s()
        with self._changed:
            self._leave(now_s - IDLE_S)
            lines = self._idle.get(where)
            return lines.pop()[1] if lines else None

    def _give_back(self, where: _Where, line: Line) -> None:
        with self._changed:
            self._idle.setdefault(where, []).append((self._clock.now_s(), line))

    def _leave(self, before_s: float) -> None:
        """Close lines that have been idle since then."""
        for where, lines in list(self._idle.items()):
            while lines and lines[0][0] < before_s:
                lines.pop(0)[1].close()
            if not lines:
                del self._idle[where]


def _read(ticket: Any) -> tuple[_Where, str]:
    try:
        host, port, token, key = wire.read_list(list(ticket), 4)
        address = wire.read(str, host), wire.read(int, port)
        return (address, wire.read(str, token)), wire.read(str, key)
    except (TypeError, ValueError):
        # Without what it is, which may be a token.
        raise CarrierError("a ticket must be host, port, token and key") from None
