"""Ctrl-C and SIGTERM while a run is under way."""

import signal
from collections.abc import Callable
from typing import Any


class Signals:
    """SIGINT and SIGTERM ask for a stop while it is entered."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, lambda *_: self._ask())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
