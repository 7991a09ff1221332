"""Who hears the workers: the control loop while it serves, or else a thread.

    thread:        gather -- hear -- gather -- hear ...
    control loop:  gather -- hear -- turns -- hear ...     (the thread stands in for it)

Two threads of one interpreter that both work wait for each other at every message, up
to 5 ms each time; one that does both in turns never does. Where the loop is held up,
by a slow disk for one, the thread hears in its place, so that no worker goes unheard.
"""

import math
import queue
import threading
from collections.abc import Callable
from typing import Any

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.threads import ThreadFailed, sleep_until

# How long nothing may come until those who listen look around.
POLL_S = 0.2
# How long the control loop may leave all unheard before the thread hears them.
STAND_IN_S = 1.0
# In which the thread ends, unless it is held up.
END_S = 5.0


class Listening:
    """Has all that came heard at a time, and again after a pause in which more comes.

    To hear many at once costs much less: one turn of the control loop, and one frame to
    each worker that is answered.

    Args:
      clock: of the controller.
      hear: hears all that has come; takes how long to wait for something at most.
      pause_s: from one time to the next, at least.
      fail: takes what `hear` raised, behind which nothing is heard any more.

    Attributes:
      by_loop: whether the control loop listens, by `wait`.
    """

    def __init__(
        self,
        clock: Clock,
        hear: Callable[[float], None],
        *,
        pause_s: Callable[[], float],
        fail: Callable[[ThreadFailed], None],
    ) -> None:
        self._clock = clock
        self._hear = hear
        self._pause_s = pause_s
        self._fail = fail
        self._turn = threading.Lock()
        # For the thread alone: what a signal's handler sets must not be waited for by
        # the main thread, which holds its lock for moments.
        self._closing = threading.Event()
        self._heard_s = -math.inf
        self._is_deaf = self._is_closed = False
        self._thread: threading.Thread | None = None
        self.by_loop = False

    def start(self) -> None:
        """Have the thread listen, anew behind an error."""
        if self._is_deaf:
            self._join()
            self._is_deaf = False
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Hear nobody any more."""
        if not self._is_closed:
            # Once, so that a handler that interrupts this does not wait for it.
            self._is_closed = True
            self._closing.set()
        self._join()

    def _join(self) -> None:
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(END_S)

    def wait(
        self, events: queue.SimpleQueue[Any], timeout_s: float | None = None
    ) -> list[Any]:
        """Listen until there are events, on the control loop's thread.

        Args:
          events: which those fill that are told of what is heard.
          timeout_s: at most; None for ever.

        Returns:
          An event that was taken, if any; others may be there.
        """
        now_s = self._clock.now_s
        end_s = math.inf if timeout_s is None else now_s() + timeout_s
        while True:
            has_events, left_s = not events.empty(), max(end_s - now_s(), 0.0)
            due_in_s = self._due_in_s()
            if due_in_s <= 0.0:
                self._listen(0.0 if has_events else min(POLL_S, left_s))
                # However long it took, by which it may be due again.
                has_events = not events.empty()
            if has_events or not left_s:
                return []
            pause_s = POLL_S if self._is_deaf else due_in_s
            if pause_s > 0.0 and (found := sleep_until(events, min(pause_s, left_s))):
                return found

    def _due_in_s(self) -> float:
        return self._heard_s + self._pause_s() - self._clock.now_s()

    def _run(self) -> None:
        while not (self._closing.is_set() or self._is_deaf):
            if not self.by_loop:
                self._closing.wait(self._due_in_s())
                self._listen(POLL_S, POLL_S)
            elif self._due_in_s() < -STAND_IN_S:
                # Not where the loop is at it, and is held up by one worker.
                self._listen(0.0, 0.0)
                self._closing.wait(self._pause_s())
            else:
                self._closing.wait(POLL_S)

    def _listen(self, timeout_s: float, turn_s: float = -1.0) -> None:
        """Hear what is there, or comes in this time, once nobody else does.

        Args:
          timeout_s: to wait for something at most.
          turn_s: to wait for the turn at most, and else let it be; -1 for ever.
        """
        if not self._turn.acquire(timeout=turn_s):
            return
        try:
            if not self._is_deaf:
                self._heard_s = self._clock.now_s()
                self._hear(timeout_s)
        except BaseException as error:  # noqa: BLE001
            # The outermost handler of the thread, and for the loop the same: whatever
            # ends listening must end the run.
            self._is_deaf = True
            self._fail(ThreadFailed("fleet", error))
        finally:
            self._turn.release()
