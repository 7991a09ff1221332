"""A worker's line to the controller: commands come in, messages go out when asked for.

    line --do--> desk                  [thread "contact"]
         --ask-> outbox --batch--> line     [thread "messages"]

The controller asks for several batches ahead, and goes on asking as it has them: what
it can't read yet stays here and travels together. What names objects of Ray's is
fetched by a call of Ray's.
"""

import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.lines.door import dial
from jigsaw_jax.runtime.lines.line import Line, LineClosedError
from jigsaw_jax.runtime.threads import ThreadFailed

# How long a new process looks for the controller.
DIAL_S = 60.0
ASK, DO = "ask", "do"


@functools.cache
def ask(num: int, timeout_s: float, linger_s: float) -> bytes:
    """Asks for so many batches; as `Outbox.take` has them."""
    return wire.to_bytes([ASK, num, timeout_s, linger_s])


@functools.cache
def do() -> bytes:
    """The head of a batch of commands."""
    return wire.to_bytes([DO])


class Contact:
    """Dials at once; when the line ends the process does.

    Args:
      charter: with the address of the controller's door, the token and the ticket.
      outbox: of this worker.
      take: takes a batch of commands.
      fail: takes what a thread died of.
      end: ends the process.
    """

    def __init__(
        self,
        charter: dict[str, Any],
        outbox: Outbox,
        *,
        take: Callable[[bytes], None],
        fail: Callable[[ThreadFailed], None],
        end: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        host, port = charter["door"]
        self._door = host, port
        self._token: str = charter["token"]
        self._ticket: str = charter["ticket"]
        self._outbox = outbox
        self._take = take
        self._fail = fail
        self._end = end
        self._why = ""
        self._unreached = threading.Event()
        self._asks: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="contact", daemon=True).start()

    def wait(self) -> None:
        """Wait for ever, or until it is clear that the controller can't be reached.

        Raises:
          LineClosedError: it can't.
        """
        self._unreached.wait()
        raise LineClosedError(self._why)

    def _listen(self) -> None:
        try:
            line = dial(self._door, self._token, self._ticket, within_s=DIAL_S)
        except LineClosedError as error:
            self._why = str(error)
            self._unreached.set()
            return
        try:
            with contextlib.closing(line):
                self._serve(line)
        except LineClosedError:
            # Whoever could want something of this process is gone.
            self._end()
        except BaseException as error:  # noqa: BLE001
            # The outermost handler of this thread: the run must hear of it.
            self._fail(ThreadFailed("contact", error))

    def _serve(self, line: Line) -> None:
        threading.Thread(
            target=self._speak, args=(line,), name="messages", daemon=True
        ).start()
        while True:
            head, body = line.receive()
            self._hear(wire.from_bytes(head), bytes(body))

    def _hear(self, head: Any, body: bytes) -> None:
        name, *values = wire.read_list(head)
        if name == DO:
            self._take(body)
        elif name == ASK:
            num, *waits_s = wire.read_list(values, 3)
            timeout_s, linger_s = wire.read(tuple[float, ...], waits_s)
            for _ in range(wire.read(int, num)):
                self._asks.put((timeout_s, linger_s))
            self._outbox.num_asked += 1
        else:
            raise wire.WireError(f"frame must be ask or do, got {name!r}")

    def _speak(self, line: Line) -> None:
        try:
            while True:
                timeout_s, linger_s = self._asks.get()
                line.send(*self._outbox.take(timeout_s, linger_s))
        except LineClosedError:
            # The other thread sees it too.
            pass
        except BaseException as error:  # noqa: BLE001
            # The outermost handler of this thread: the run must hear of it. What could
            # not be written is let go by now, so that this can be.
            self._fail(ThreadFailed("messages", error))
            with contextlib.suppress(LineClosedError):
                line.send(*self._outbox.take(0.0))
