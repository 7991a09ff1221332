"""A thread that runs commands in order, and turns on a shared device.

    control loop --do(command)--> inbox --> CommandThread --post(event)--> control loop

An error in a command ends the thread and reaches the control loop as `ThreadFailed`,
with its traceback, so nothing that breaks in the background is ever silent.
"""

import collections
import contextlib
import dataclasses
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# That `short_turns` gives a thread before another that waits may go on.
TURN_S = 0.0005


@dataclasses.dataclass(frozen=True, slots=True)
class ThreadFailed:
    """What a background thread died of."""

    thread: str
    error: BaseException


class CommandThread:
    """Runs queued commands in order and, between them, `work` while it has any.

    `work()` does one piece and says whether more is left; commands go first.
    """

    def __init__(
        self,
        name: str,
        fail: Callable[[ThreadFailed], None],
        *,
        work: Callable[[], bool] | None = None,
    ) -> None:
        self._inbox: queue.SimpleQueue = queue.SimpleQueue()
        self._fail = fail
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to run commands."""
        self._thread.start()

    def do(self, command: Callable[..., Any], *args: Any) -> None:
        """Queue `command(*args)`."""
        self._inbox.put((command, args))

    def stop(self, timeout_s: float | None = None) -> bool:
        """End after what is queued; whether it ended in time."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001
            # The outermost handler: whatever ends a thread must end the run.
            self._fail(ThreadFailed(self._thread.name, error))

    def _serve(self) -> None:
        has_work = False
        while True:
            try:
                item = self._inbox.get(block=not has_work)
            except queue.Empty:
                item = ()
            if item is None:
                return
            if item:
                command, args = item
                command(*args)
                has_work = self._work is not None
            elif self._work is not None:
                has_work = self._work()


def sleep_until(
    events: queue.SimpleQueue[Any], timeout_s: float | None = None
) -> list[Any]:
    """Wait for an event.

    Args:
      events: which others fill.
      timeout_s: at most; None for ever.

    Returns:
      The event, or nothing.
    """
    try:
        return [events.get(timeout=timeout_s)]
    except queue.Empty:
        return []


def arrivals(
    events: queue.SimpleQueue[Any],
    split: Callable[[list[Any]], Iterable[list[Any]]],
    *,
    wait: Callable[[queue.SimpleQueue[Any], float | None], list[Any]] = sleep_until,
    idle_s: Callable[[], float | None] = lambda: None,
    idle: Callable[[], Any] | None = None,
) -> Iterator[list[Any]]:
    """Everything that comes, in order and without end.

    Args:
      events: which others fill.
      split: cuts what is there at the same time into batches.
      wait: waits until there is an event, at most so many seconds; returns those that
        it has taken.
      idle_s: how long nothing may come, asked each time; None for ever.
      idle: makes an event that says so.

    Yields:
      Batches of at least one event.
    """
    while True:
        items = wait(events, idle_s())
        # Nobody else takes any.
        items += [events.get_nowait() for _ in range(events.qsize())]
        if not items:
            assert idle is not None
            items.append(idle())
        yield from split(items)


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Have who waits for the interpreter wait for half a millisecond, and not for five.

    For a process with one thread that others wait for; those that write its logs would
    hold it up each time that it has read or sent something.

    Yields:
      With turns so; as they were before behind that.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Turns:
    """First come, first served turns on one device; free where nothing is shared.

    A plain lock lets the thread that has just released it take it again at once, so
    a busy sampler would starve the learner.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._lock = threading.Lock()
        self._waiting: collections.deque[threading.Event] = collections.deque()
        self._is_taken = False

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the device for one piece of work."""
        if not self._is_shared:
            yield
            return
        self._take()
        try:
            yield
        finally:
            self._give()

    def _take(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def _give(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False
