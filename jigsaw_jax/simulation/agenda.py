"""Virtual time: what happens next, in order, without waiting for it."""

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., object]


class Agenda:
    """A clock that jumps from one action to the next.

    Attributes:
      now_s: seconds since the simulation began.
      done: actions that were run.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_s: float, action: Action, *args: Any) -> None:
        """Run `action(*args)` at a time; those of one time run as they were added."""
        assert time_s >= self.now_s, (time_s, self.now_s)
        heapq.heappush(self._heap, (time_s, self._count, action, args))
        self._count += 1

    def after(self, delay_s: float, action: Action, *args: Any) -> None:
        """Run `action(*args)` some time from now."""
        self.at(self.now_s + delay_s, action, *args)

    def step(self) -> bool:
        """Run the next action; False where there is none."""
        if not self._heap:
            return False
        self.now_s, _, action, args = heapq.heappop(self._heap)
        self.done += 1
        action(*args)
        return True
