import contextlib
import queue
import signal
import threading

import pytest

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import listening
from jigsaw_jax.runtime.cluster.listening import POLL_S, Listening
from tests.waiting import wait_until

LONG_S = 10.0


class Lines:
    """What is heard, by whom, and how long was to be waited for it."""

    def __init__(self):
        self.events = queue.SimpleQueue()
        self.heard = []
        self.error: Exception | None = None
        self.posts = True
        self.failed = queue.SimpleQueue()

    def hear(self, timeout_s):
        self.heard.append((threading.current_thread().name, timeout_s))
        if self.error:
            raise self.error
        if self.posts:
            self.events.put(len(self.heard))


@contextlib.contextmanager
def listening_to(lines, pause_s=0.0):
    made = Listening(
        Clock(), lines.hear, pause_s=lambda: pause_s, fail=lines.failed.put
    )
    try:
        yield made
    finally:
        made.close()


def test_the_loop_hears_between_two_turns_once_a_pause():
    lines = Lines()
    with listening_to(lines, LONG_S) as made:
        made.wait(lines.events)
        assert [timeout_s for _, timeout_s in lines.heard] == [POLL_S]
        # There is something to do, and others are let gather.
        made.wait(lines.events)
        assert len(lines.heard) == lines.events.qsize() == 1
        made._pause_s = lambda: 0.0
        made.wait(lines.events)
        # It is due, and not waited for.
        assert [timeout_s for _, timeout_s in lines.heard] == [POLL_S, 0.0]


def test_what_takes_longer_than_a_pause_is_heard_once_a_turn():
    lines = Lines()
    with listening_to(lines) as made:
        for turn in range(1, 4):
            made.wait(lines.events)
            assert len(lines.heard) == turn


@pytest.mark.parametrize("pause_s", [0.0, LONG_S])
def test_the_loop_is_told_of_the_time_where_nothing_comes(pause_s):
    lines = Lines()
    lines.posts = False
    with listening_to(lines, pause_s) as made:
        made.wait(lines.events, 0.01)
        made.wait(lines.events, 0.0)
    assert lines.events.empty()
    # At once, or after the pause that is longer.
    assert lines.heard[0][1] <= 0.01


def test_an_event_that_another_thread_posts_ends_the_wait():
    lines = Lines()
    lines.posts = False
    with listening_to(lines) as made:
        posting = threading.Timer(0.02, lines.events.put, ("stop",))
        posting.start()
        made.wait(lines.events)
        posting.join()
    assert lines.events.get_nowait() == "stop"


def test_a_thread_listens_until_the_loop_does_and_where_that_is_held_up(monkeypatch):
    monkeypatch.setattr(listening, "STAND_IN_S", 0.05)
    monkeypatch.setattr(listening, "POLL_S", 0.01)
    lines = Lines()
    with listening_to(lines, 0.001) as made:
        made.start()
        made.start()
        wait_until(lambda: lines.heard)
        made.by_loop = True
        # One that was under way waits as before.
        wait_until(lambda: ("fleet", 0.0) in lines.heard)
    assert set(lines.heard) == {("fleet", 0.01), ("fleet", 0.0)}


def test_nothing_is_heard_behind_an_error_which_is_told_once_until_the_next_life():
    lines = Lines()
    lines.error = OSError("gone")
    with listening_to(lines) as made:
        made.start()
        assert lines.failed.get(timeout=LONG_S).error is lines.error
        lines.error = None
        # It sleeps meanwhile, and does not ask again and again.
        assert made.wait(lines.events, 0.05) == []
        assert (len(lines.heard), lines.failed.qsize()) == (1, 0)
        made.start()
        assert lines.events.get(timeout=LONG_S) == 2


def test_who_is_interrupted_where_it_waits_can_close():
    lines = Lines()
    lines.posts = False
    before = signal.getsignal(signal.SIGALRM)
    # As of the handler of a second Ctrl-C, wherever it comes.
    with listening_to(lines, 0.0005) as made:
        made.start()
        made.by_loop = True

        def interrupt(*_):
            made.close()
            lines.events.put("stop")

        signal.signal(signal.SIGALRM, interrupt)
        try:
            for _ in range(100):
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                found = made.wait(lines.events) or [lines.events.get(timeout=LONG_S)]
                assert found == ["stop"]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


def test_the_thread_does_not_wait_for_a_loop_that_is_at_it(monkeypatch):
    monkeypatch.setattr(listening, "END_S", 60.0)
    lines = Lines()
    with listening_to(lines) as made:
        assert made._turn.acquire()
        made.start()
        made.by_loop = True
        made.close()
        assert made._thread is not None
        assert not made._thread.is_alive()
        made._turn.release()
    assert not lines.heard
