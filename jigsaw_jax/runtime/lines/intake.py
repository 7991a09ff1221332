"""One thread before many lines that only bring something, however many there are.

A thread for each would change places with the others at every frame: with 64 samplers
that took more of a core than reading what they send.
"""

import contextlib
import selectors
import threading
from collections.abc import Callable
from typing import Any

from jigsaw_jax.runtime.lines.line import Line, LineClosedError
from jigsaw_jax.runtime.threads import ThreadFailed

# How long what comes is let gather, so that one turn reads more of it.
GATHER_S = 0.002
# How often the thread looks whether it is to end.
LOOK_S = 0.2


class Intake:
    """Reads lines from their first frame that has not been read; from any thread.

    Args:
      name: of the thread.
      take: takes who a line is of, and head and body of a frame; on the thread.
      fail: takes what the thread died of.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[str, bytes, bytes], Any],
        fail: Callable[[ThreadFailed], None],
    ) -> None:
        self._name = name
        self._take = take
        self._fail = fail
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def add(self, source: str, line: Line) -> None:
        """Read this line from now on, to its end; it is the intake's then."""
        with self._lock:
            if self._closing.is_set():
                line.close()
                return
            self._selector.register(line, selectors.EVENT_READ, source)
            if not self._thread.is_alive():
                self._thread.start()

    def close(self) -> None:
        """Hang up; who sends is told."""
        with self._lock:
            self._closing.set()
            for key in list(self._selector.get_map().values()):
                self._end(key.fileobj)

    def _run(self) -> None:
        try:
            while not self._closing.wait(GATHER_S):
                for key, _ in self._selector.select(LOOK_S):
                    self._read(key.data, key.fileobj)
        except BaseException as error:  # noqa: BLE001
            # The outermost handler of this thread: the run must hear of it.
            self._fail(ThreadFailed(self._name, error))
        finally:
            self.close()

    def _read(self, source: str, line: Any) -> None:
        try:
            frames = line.arrived()
        except LineClosedError:
            with self._lock:
                self._end(line)
            return
        for head, body in frames:
            self._take(source, head, body)

    def _end(self, line: Any) -> None:
        # One that was closed meanwhile is not known any more.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line)
        line.close()
