"""The lines of all worker processes, each known by the ticket that it was given.

expect(ticket) -> the process calls at the door -> attached, asked -> ready(...)
"""

import collections
import contextlib
import functools
import secrets
import selectors
import threading
from collections.abc import Callable

from jigsaw_jax.runtime.cluster.hand import Hand
from jigsaw_jax.runtime.lines.door import Door, make_token
from jigsaw_jax.runtime.lines.line import Line

TICKET_BYTES = 16


class Switchboard:
    """For one thread that listens, and any that hires or retires.

    Args:
      host: address of this one, at which workers call.
      attached: told of each worker whose line has come, on its thread.

    Attributes:
      token: that every process of the run shares.
      address: of the door.
    """

    def __init__(self, host: str, attached: Callable[[Hand], None]) -> None:
        self.token = make_token()
        self._attached = attached
        # A signal's handler hangs up, also where it has interrupted one of these.
        self._lock = threading.RLock()
        self._expected: dict[str, Hand] = {}
        self._selector = selectors.DefaultSelector()
        # Those whose lines have not taken all, as they are found.
        self._full: collections.deque[Hand] = collections.deque()
        self._door = Door(host, self.token, self._enter)
        self.address = self._door.address

    def expect(self, ticket: str, hand: Hand) -> None:
        """A process that was given this ticket will call."""
        hand.ticket = ticket
        with self._lock:
            self._expected[ticket] = hand

    def _enter(self, ticket: str, line: Line) -> None:
        with self._lock:
            hand = self._expected.pop(ticket, None)
            if hand is None:
                # It was given up meanwhile.
                line.close()
                return
            line.filled = functools.partial(self._full.append, hand)
            hand.attach(line)
            self._attached(hand)
            self._selector.register(line, selectors.EVENT_READ, hand)

    def hang_up(self, hand: Hand) -> None:
        """End a process's line, or don't wait for it."""
        with self._lock:
            self._expected.pop(hand.ticket, None)
            if hand.line is not None:
                # One that was ended before is not known any more.
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(hand.line)
                hand.line.close()

    def ready(self, timeout_s: float) -> list[Hand]:
        """Wait until something has come, and let out what the lines now take.

        Args:
          timeout_s: to wait at most.

        Returns:
          Those whose lines have something to read, or have ended.
        """
        while self._full:
            self._watch(self._full.popleft())
        found = []
        for key, events in self._selector.select(timeout_s):
            if events & selectors.EVENT_WRITE:
                key.data.line.push()
                self._watch(key.data)
            if events & selectors.EVENT_READ:
                found.append(key.data)
        return found

    def _watch(self, hand: Hand) -> None:
        """Be woken when a line that was full takes more, and not when it has all."""
        events = selectors.EVENT_READ
        # One that was hung up meanwhile is not known any more.
        with self._lock, contextlib.suppress(KeyError, ValueError):
            if hand.line is not None:
                if hand.line.has_unsent:
                    events |= selectors.EVENT_WRITE
                self._selector.modify(hand.line, events, hand)

    def close(self) -> None:
        """Let nobody in any more."""
        self._door.close()


def make_ticket() -> str:
    """What a process says at the door, and nobody else knows."""
    return secrets.token_hex(TICKET_BYTES)
