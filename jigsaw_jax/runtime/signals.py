"""Ctrl-C and SIGTERM, by what a run is at.

    imports, build -> one line, and the process ends: an import that an exception cuts
                      off breaks what it loads, or crashes
    many processes -> `SignalledError`, whose way up ends them; again: as above
    updates        -> the run finishes the update, saves and ends; again: as above
    the end        -> `SignalledError`

What is on disk is whole in each case: a run that is killed leaves no less.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)
STOPPED = "stopped; the same command goes on from what is saved\n"


class SignalledError(KeyboardInterrupt):
    """A signal while a run is built or ended.

    Args:
      number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = exit_code(number)


def exit_code(number: int = signal.SIGINT) -> int:
    """Of a process that a signal ends, as shells have it: 130 or 143."""
    return 128 + number


def leave_at_once() -> None:
    """From now on a signal ends the process, with one line."""
    for number in NUMBERS:
        signal.signal(number, _leave)
    # Held back since the process that this one was before; see `allocator`.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """The same, and afterwards as before."""
    with _handled(_leave):
        yield


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """A signal raises `SignalledError`, and afterwards is handled as before."""
    with _handled(_interrupt):
        yield


class Signals:
    """SIGINT and SIGTERM ask for a stop while it is entered."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._handled = _handled(lambda *_: ask())

    def __enter__(self) -> None:
        self._handled.__enter__()

    def __exit__(self, *_: object) -> None:
        self._handled.__exit__(None, None, None)


@contextlib.contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in NUMBERS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _leave(number: int, frame: Any) -> None:
    del frame
    # Past Python's buffers, which the signal may have come in the middle of.
    with contextlib.suppress(OSError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, STOPPED.encode())
    os._exit(exit_code(number))


def _interrupt(number: int, frame: Any) -> None:
    del frame
    for every in NUMBERS:
        # Who is in a hurry asks again.
        signal.signal(every, _leave)
    raise SignalledError(number)
