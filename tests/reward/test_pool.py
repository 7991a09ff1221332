"""The pool with real worker processes that hang, die and raise."""

import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from jigsaw_jax import settings
from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.pool import RewardPool
from jigsaw_jax.reward.process import WorkerProcess, WorkerRefusedError
from tests.waiting import wait_until

# Twenty-eight letters in front of a mismatch take this pattern minutes.
FORMAT = r"(a+)+b"
HANG = "a" * 36
QUICK = "aab"
ROOT = pathlib.Path(__file__).parents[2]


def _prompt(answer="7", task="chain_sum", **metadata):
    return Prompt(
        uid="u", tokens=(), text="p", answer=answer, task=task, metadata=metadata
    )


class _Inbox:
    """Collects scores by name, in the order in which they come."""

    def __init__(self, pool):
        self.pool = pool
        self.scores = queue.Queue()

    def submit(self, name, text, prompt=None):
        self.pool.submit(
            prompt or _prompt(), text, lambda score: self.scores.put((name, score))
        )

    def take(self, num, timeout_s=30):
        return [self.scores.get(timeout=timeout_s) for _ in range(num)]


@pytest.fixture
def open_pool():
    pools = []

    def make(on_failed=lambda _: None, **fields):
        pools.append(RewardPool(settings.Reward(**fields), on_failed=on_failed))
        return _Inbox(pools[-1])

    yield make
    for pool in pools:
        pids = pool.pids()
        pool.close()
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


def _is_gone(pid):
    # Without a parent that waits, a dead process may stay as a zombie for a while.
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_a_hang_is_killed_and_counted_while_others_go_on(open_pool):
    inbox = open_pool(
        weights={"format": 1.0}, format_pattern=FORMAT, processes=2, timeout_s=2.0
    )
    inbox.submit("warm", QUICK)
    inbox.take(1)
    started_s = time.monotonic()
    inbox.submit("hang", HANG)
    for i in range(50):
        inbox.submit(i, QUICK if i % 2 else "c")
    first = inbox.take(50)
    assert [name for name, _ in first] == list(range(50))
    assert [score.value for _, score in first] == [float(i % 2) for i in range(50)]
    ((name, score),) = inbox.take(1)
    # A busy machine may be late to notice, not by the minutes that it would take.
    assert 2.0 <= time.monotonic() - started_s < 30.0
    assert (name, score.value, score.failure) == ("hang", None, "timeout")
    assert (inbox.pool.timeouts, inbox.pool.crashes) == (1, 0)


@pytest.mark.slow
def test_one_worker_goes_on_after_a_hang_and_the_rest_of_its_queue_is_kept(open_pool):
    inbox = open_pool(
        weights={"format": 1.0}, format_pattern=FORMAT, processes=1, timeout_s=1.5
    )
    for name, text in enumerate([QUICK, HANG, QUICK, HANG, "x"]):
        inbox.submit(name, text)
    results = dict(inbox.take(5))
    values = [results[name].value for name in range(5)]
    assert values == [1.0, None, 1.0, None, 0.0]
    assert inbox.pool.timeouts == 2


def _kill_at_work(pool, busy_s, but=()):
    """Kill the one worker, another than `but`, when it has computed for so long."""

    def is_busy():
        try:
            (pid,) = pool.pids()
            return pid not in but and psutil.Process(pid).cpu_times().user > busy_s
        except (ValueError, psutil.NoSuchProcess):
            return False

    wait_until(is_busy)
    (pid,) = pool.pids()
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_worker_killed_twice_at_one_score_is_a_crash_and_is_replaced(open_pool):
    inbox = open_pool(
        weights={"format": 1.0}, format_pattern=FORMAT, processes=1, timeout_s=30.0
    )
    inbox.submit("before", QUICK)
    inbox.take(1)
    inbox.submit("hang", HANG)
    (pid,) = inbox.pool.pids()
    busy_s = psutil.Process(pid).cpu_times().user + 0.3
    first = _kill_at_work(inbox.pool, busy_s)
    second = _kill_at_work(inbox.pool, busy_s, but=[first])
    ((_, score),) = inbox.take(1)
    assert (score.value, score.failure) == (None, "crash")
    inbox.submit("after", QUICK)
    assert inbox.take(1)[0][1].value == 1.0
    assert not {first, second} & set(inbox.pool.pids())
    assert (inbox.pool.timeouts, inbox.pool.crashes) == (0, 1)


@pytest.mark.slow
def test_a_worker_killed_once_costs_no_score(open_pool):
    inbox = open_pool(
        weights={"format": 1.0}, format_pattern=FORMAT, processes=1, timeout_s=30.0
    )
    inbox.submit("before", QUICK)
    inbox.take(1)
    # A second of work: long enough to be killed in, short enough to be done again.
    inbox.submit("slow", "a" * 25)
    _kill_at_work(inbox.pool, 0.0)
    ((name, score),) = inbox.take(1)
    assert (name, score.value, score.failure) == ("slow", 0.0, None)
    assert (inbox.pool.timeouts, inbox.pool.crashes) == (0, 0)


def test_a_raising_verifier_is_an_error_and_its_worker_lives(open_pool):
    inbox = open_pool(weights={"numeric": 1.0}, processes=1)
    inbox.submit("bad", "7", _prompt(answer="seven"))
    inbox.submit("good", "7")
    results = dict(inbox.take(2))
    assert results["bad"].value is None
    assert results["bad"].failure.startswith("error: numeric: ValueError")
    assert results["good"].value == 1.0
    assert (inbox.pool.timeouts, inbox.pool.crashes) == (0, 0)


def test_every_score_from_many_threads_comes_once_and_to_its_own(open_pool):
    inbox = open_pool(weights={"task": 1.0}, processes=2)

    def submit(thread):
        for i in range(200):
            inbox.submit((thread, i), str(i % 10))

    threads = [threading.Thread(target=submit, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    results = inbox.take(800)
    for thread in threads:
        thread.join()
    by_name = dict(results)
    assert len(by_name) == 800
    assert all(score.value == float(i % 10 == 7) for (_, i), score in results)
    assert inbox.scores.empty()


def test_texts_larger_than_a_pipe_come_through(open_pool):
    inbox = open_pool(weights={"lowercase_share": 1.0}, processes=1)
    # A lone surrogate and a NUL are legal text here, too.
    inbox.submit("big", "a" * 3_000_000 + "\ud800\x00" + "B" * 2_999_998)
    ((_, score),) = inbox.take(1)
    assert score.value == 0.5


def test_closing_in_the_middle_of_a_hang_is_quick_and_delivers_what_waits():
    reward = settings.Reward(
        weights={"format": 1.0}, format_pattern=FORMAT, processes=1, timeout_s=60.0
    )
    inbox = _Inbox(RewardPool(reward))
    inbox.submit("warm", QUICK)
    inbox.take(1)
    for name in ("hang", "waits"):
        inbox.submit(name, HANG)
    pids = inbox.pool.pids()
    started_s = time.monotonic()
    inbox.pool.close()
    assert time.monotonic() - started_s < 30.0
    failures = {score.failure for _, score in inbox.take(2)}
    assert failures == {"error: the reward pool was closed"}
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert (inbox.pool.timeouts, inbox.pool.crashes) == (0, 0)
    with pytest.raises(RuntimeError, match="closed"):
        inbox.submit("late", QUICK)


def test_closing_for_good_waits_for_no_thread_that_can_t_go_on(open_pool):
    inbox = open_pool(weights={"exact": 1.0}, processes=1)
    inbox.submit("a", "7")
    inbox.take(1)
    (process,) = map(psutil.Process, inbox.pool.pids())
    # As where a handler has interrupted who put a score into the queue.
    with inbox.pool._changed:
        inbox.submit("b", "7")
        inbox.pool.close(0.1)
    assert not psutil.wait_procs([process], 10)[1]
    assert inbox.take(1)[0][0] == "b"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_in_a_thread_of_the_pool_is_told_at_once(open_pool, monkeypatch):
    told = queue.Queue()
    monkeypatch.setattr(RewardPool, "_is_ready", lambda *_: 1 / 0)
    inbox = open_pool(processes=1, on_failed=told.put)
    error = told.get(timeout=20.0)
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    with pytest.raises(RuntimeError, match="must not fail"):
        inbox.submit("late", "7")


def test_workers_that_do_not_start_are_said_and_no_score_waits(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    told = []
    pool = RewardPool(settings.Reward(processes=1), on_failed=told.append)
    inbox = _Inbox(pool)
    errors = []

    def is_refused():
        try:
            inbox.submit("early", "7")
        except RuntimeError as error:
            errors.append(str(error))
        return bool(errors)

    wait_until(is_refused)
    inbox.pool.close()
    assert "reward workers must start" in errors[0]
    assert [str(error) for error in told] == errors
    while not inbox.scores.empty():
        _, score = inbox.scores.get()
        assert score.value is None
        assert "reward workers must start" in score.failure


def test_a_worker_that_refuses_says_why_and_is_not_started_again(monkeypatch):
    starts = []

    def refuse(worker, timeout_s):
        starts.append((worker, timeout_s))
        raise WorkerRefusedError("no sandbox here")

    monkeypatch.setattr(WorkerProcess, "wait_ready", refuse)
    inbox = _Inbox(RewardPool(settings.Reward(processes=1)))
    wait_until(lambda: inbox.pool._broken)
    with pytest.raises(RuntimeError, match="no sandbox here"):
        inbox.submit("late", "7")
    inbox.pool.close()
    assert len(starts) == 1


def test_no_processes_score_on_the_calling_thread():
    pool = RewardPool(settings.Reward(processes=0))
    threads = []
    pool.submit(_prompt(), "7", lambda _: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]
    assert pool.pids() == []
    pool.close()


PARENT = """
import sys, threading
from jigsaw_jax import settings
from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.pool import RewardPool
pool = RewardPool(settings.Reward(
    weights={"format": 1.0}, format_pattern=sys.argv[1], timeout_s=1.5))
prompt = Prompt(uid="u", tokens=(), text="p", answer="", task="t")
ready = threading.Event()
pool.submit(prompt, "aab", lambda _: ready.set())
ready.wait()
if sys.argv[2]:
    pool.submit(prompt, sys.argv[2], print)
print(pool.pids()[0], flush=True)
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", HANG])
def test_a_worker_ends_with_a_parent_that_was_killed(text):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, FORMAT, text],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert parent.stdout is not None
    with parent:
        pid = int(parent.stdout.readline())
        if text:
            wait_until(lambda: psutil.Process(pid).cpu_times().user > 0.3)
        parent.kill()
    # Idle, it sees its stdin end; in a hang, the alarm ends it after 3 s.
    wait_until(lambda: _is_gone(pid))


def test_a_worker_is_small_and_knows_no_jax(open_pool):
    inbox = open_pool(processes=1)
    inbox.submit("one", "7")
    inbox.take(1)
    (pid,) = inbox.pool.pids()
    # 18 MB are measured; numpy alone would add 25.
    assert psutil.Process(pid).memory_info().rss < 30e6


def test_an_answer_that_is_executed_still_creates_no_file(open_pool, tmp_path):
    inbox = open_pool(
        weights={"reasoning_gym": 1.0},
        processes=1,
        allow_executing_scorers=True,
        timeout_s=10.0,
    )
    path = tmp_path / "pwned"
    answers = [
        f"open({str(path)!r}, 'w')",
        f"__import__('os').system('touch {path}')",
        f"__import__('os').open({str(path)!r}, 65)",
        f"__import__('os').mkdir({str(path)!r})",
        f"__import__('pathlib').Path({str(path)!r}).touch()",
        f"__import__('subprocess').run(['touch', {str(path)!r}])",
        f"__import__('shutil').copy('/etc/hostname', {str(path)!r})",
    ]
    prompt = _prompt(answer="1 0", task="spiral_matrix")
    inbox.submit("right", "1 0", prompt)
    # This scorer does execute: a list that equals the gold gets its tenth.
    inbox.submit("executed", "[1, 1 - 1]", prompt)
    for answer in answers:
        inbox.submit(answer, answer, prompt)
    results = dict(inbox.take(2 + len(answers), timeout_s=120))
    assert results.pop("right").value == 1.0
    assert results.pop("executed").value == 0.1
    assert all(not score.value for score in results.values())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_tower_of_powers_costs_one_score(open_pool):
    inbox = open_pool(
        weights={"reasoning_gym": 1.0},
        processes=1,
        allow_executing_scorers=True,
        timeout_s=3.0,
    )
    prompt = _prompt(answer="1 0", task="spiral_matrix")
    inbox.submit("tower", "9**9**9**9", prompt)
    inbox.submit("right", "1 0", prompt)
    results = dict(inbox.take(2, timeout_s=120))
    assert results["tower"].failure == "timeout"
    assert results["right"].value == 1.0
