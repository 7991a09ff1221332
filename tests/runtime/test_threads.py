import queue
import sys
import threading
import time

import pytest

from jigsaw_jax.runtime.threads import (
    TURN_S,
    CommandThread,
    ThreadFailed,
    Turns,
    arrivals,
    short_turns,
)
from tests.waiting import wait_until

# More than it takes, also where others have the cores.
SOON_S = 20.0


def test_commands_run_in_order():
    done, seen = threading.Event(), []
    thread = CommandThread("t", seen.append)
    thread.start()
    for i in range(100):
        thread.do(seen.append, i)
    thread.do(done.set)
    assert done.wait(SOON_S)
    assert seen == list(range(100))
    assert thread.stop(SOON_S)


def test_an_error_reaches_the_control_loop_with_its_traceback():
    failed = threading.Event()
    failures = []

    def fail(failure):
        failures.append(failure)
        failed.set()

    thread = CommandThread("learner", fail)
    thread.start()
    thread.do(lambda: 1 / 0)
    assert failed.wait(SOON_S)
    assert isinstance(failures[0], ThreadFailed)
    assert failures[0].thread == "learner"
    assert isinstance(failures[0].error, ZeroDivisionError)
    assert failures[0].error.__traceback__ is not None


def test_work_runs_until_it_says_there_is_none_and_commands_go_first():
    seen, idle = [], threading.Event()
    left = [3]

    def work():
        seen.append("work")
        left[0] -= 1
        if not left[0]:
            idle.set()
        return left[0] > 0

    thread = CommandThread("t", seen.append, work=work)
    thread.do(seen.append, "first")
    thread.do(seen.append, "second")
    thread.start()
    assert idle.wait(SOON_S)
    assert thread.stop(SOON_S)
    assert seen == ["first", "second", "work", "work", "work"]


def test_an_idle_thread_takes_no_processor_time():
    thread = CommandThread("t", lambda _: None, work=lambda: False)
    thread.start()
    at_work = threading.Event()
    thread.do(at_work.set)
    assert at_work.wait(SOON_S)
    # Of this thread alone: those of tests before may still be ending.
    assert thread._thread.ident is not None
    clock = time.pthread_getcpuclockid(thread._thread.ident)
    before_s = time.clock_gettime(clock)
    threading.Event().wait(0.3)
    assert time.clock_gettime(clock) - before_s < 0.1
    assert thread.stop(SOON_S)


def test_turns_are_first_come_first_served():
    turns = Turns(is_shared=True)
    order, holding = [], threading.Event()

    def holder():
        with turns.turn():
            holding.set()
            wait_until(lambda: turns._waiting)
            order.append("holder")
        # It asks again at once and must wait behind the one who waited.
        with turns.turn():
            order.append("holder again")

    def waiter():
        with turns.turn():
            order.append("waiter")

    first = threading.Thread(target=holder)
    first.start()
    assert holding.wait(SOON_S)
    second = threading.Thread(target=waiter)
    second.start()
    for thread in (first, second):
        thread.join(SOON_S)
    assert order == ["holder", "waiter", "holder again"]


def test_turns_cost_nothing_where_nothing_is_shared():
    turns = Turns(is_shared=False)
    with turns.turn(), turns.turn():
        pass


def test_turns_of_the_interpreter_are_short_for_a_while():
    before = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(TURN_S)
    assert sys.getswitchinterval() == before


def test_events_that_wait_together_are_cut_into_batches_in_order():
    events = queue.SimpleQueue()
    for event in ("a1", "a2", "b1", "a3"):
        events.put(event)
    coming = arrivals(events, lambda found: [found[:2], found[2:]])
    assert [next(coming) for _ in range(2)] == [["a1", "a2"], ["b1", "a3"]]


def test_an_event_is_made_where_none_comes():
    coming = arrivals(
        events := queue.SimpleQueue(),
        lambda found: [found],
        idle_s=[0.0, 0.01, None].pop,
        idle=lambda: "nothing",
    )
    events.put("first")
    # Asked each time: for ever, a moment, and not at all.
    assert [next(coming) for _ in range(3)] == [["first"], ["nothing"], ["nothing"]]
