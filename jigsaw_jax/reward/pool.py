"""Scores completions in processes that can be killed, so that no score can block.

One thread keeps one worker process. It takes scores from the queue, hands them over and
waits for each answer up to the limit; a worker that is late or dies is killed and
replaced, and the rest of its batch goes back to the head of the queue. The one score is
missing where it was late; where the worker died, it is tried once more.
"""

import collections
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from jigsaw_jax.records import Prompt, Score
from jigsaw_jax.reward import frame
from jigsaw_jax.reward.process import (
    WorkerDiedError,
    WorkerProcess,
    WorkerRefusedError,
)
from jigsaw_jax.reward.score import score
from jigsaw_jax.settings import Reward

# Rewards that cannot hang travel together; a hang would hold up the rest of its batch.
BATCHED = frozenset({"exact", "lowercase_share", "multiple_choice", "numeric", "task"})
BATCH_MAX = 32
# reasoning-gym and sympy load in 1 to 10 seconds, more on a busy machine.
START_TIMEOUT_S = 120.0
STARTS_MAX = 3
# For a process that is about to end: in which the threads see that.
KILL_S = 2.0

Deliver = Callable[[Score], None]


class _Job(NamedTuple):
    prompt: Prompt
    text: str
    deliver: Deliver
    is_again: bool = False


def _ignore(error: BaseException) -> None:
    """Whoever submits next hears of it."""


class RewardPool:
    """Scores completions; every one that is submitted is delivered exactly once.

    With `Reward.processes` = 0 a score is computed on the calling thread, which only
    rewards of ours may. `timeouts` counts the scores that hit the wall limit so far and
    `crashes` those whose worker died twice: once may be another's doing.

    Args:
      reward: what scores, and in how many processes.
      on_failed: called, from a thread of the pool, when nothing will be scored any
        more; what waits is then delivered without a value.
    """

    def __init__(
        self, reward: Reward, *, on_failed: Callable[[BaseException], None] = _ignore
    ) -> None:
        self._on_failed = on_failed
        self.timeouts = 0
        self.crashes = 0
        self._reward = reward
        self._batch_max = BATCH_MAX if set(reward.weights) <= BATCHED else 1
        self._jobs: collections.deque[_Job] = collections.deque()
        self._changed = threading.Condition()
        self._workers: set[WorkerProcess] = set()
        self._is_closed = False
        self._broken: str | None = None
        self._keepers = [
            threading.Thread(target=self._run, name=f"reward-{i}", daemon=True)
            for i in range(reward.processes)
        ]
        for keeper in self._keepers:
            keeper.start()

    def submit(self, prompt: Prompt, text: str, deliver: Deliver) -> None:
        """Score a completion; `deliver` gets the score, from a thread of the pool.

        Args:
          prompt: the problem.
          text: the completion, without its stop token.
          deliver: must be quick and must not raise.

        Raises:
          RuntimeError: the pool is closed, or its workers do not start.
        """
        if not self._keepers:
            deliver(score(prompt, text, self._reward))
            return
        with self._changed:
            if self._is_closed:
                raise RuntimeError("RewardPool must be open to score, got closed")
            if self._broken:
                raise RuntimeError(self._broken)
            self._jobs.append(_Job(prompt, text, deliver))
            self._changed.notify()

    def close(self, within_s: float = math.inf) -> None:
        """Kill the workers and wait for the threads; what waits fails as closed.

        Args:
          within_s: to wait at most. A signal's handler may have interrupted what the
            threads wait for.
        """
        end_s = time.monotonic() + within_s
        with self._changed:
            self._is_closed = True
            for worker in self._workers:
                worker.kill()
            self._changed.notify_all()
        for keeper in self._keepers:
            left_s = end_s - time.monotonic()
            keeper.join(None if left_s == math.inf else max(left_s, 0.0))
        self._fail_all("error: the reward pool was closed")

    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        with self._changed:
            return [worker.pid for worker in self._workers]

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException as error:
            # Nobody would score any more, and the run would wait for ever.
            reason = f"a thread of the reward pool must not fail, got {error!r}"
            self._give_up(reason, error)
            raise

    # A keeper's life: start a worker, feed it until it fails, again.

    def _keep(self) -> None:
        failed_starts = 0
        while not self._is_closed and failed_starts < STARTS_MAX:
            worker = self._start()
            if worker is None:
                return
            try:
                if self._is_ready(worker):
                    failed_starts = 0
                    self._feed(worker)
                else:
                    failed_starts += 1
            except WorkerRefusedError as error:
                self._give_up(str(error))
                return
            finally:
                with self._changed:
                    self._workers.discard(worker)
                worker.close()
        if not self._is_closed:
            self._give_up(
                f"reward workers must start, got {STARTS_MAX} failures in a row; "
                "`python -m jigsaw_jax.reward.worker < /dev/null` may say why"
            )

    def _start(self) -> WorkerProcess | None:
        # Under the lock, so that close() sees every process that was ever started.
        with self._changed:
            if self._is_closed:
                return None
            worker = WorkerProcess(self._reward)
            self._workers.add(worker)
            return worker

    def _is_ready(self, worker: WorkerProcess) -> bool:
        try:
            worker.wait_ready(START_TIMEOUT_S)
        except (TimeoutError, WorkerDiedError):
            return False
        return True

    def _feed(self, worker: WorkerProcess) -> None:
        """Score until the pool closes or the worker fails."""
        while batch := self._take():
            failure = self._score_batch(worker, batch)
            if failure is None:
                continue
            with self._changed:
                # What has not been answered is what is left in the batch.
                failed = batch.popleft()
                self._jobs.extendleft(reversed(batch))
                if self._is_closed:
                    failure = "error: the reward pool was closed"
                elif failure == "crash" and not failed.is_again:
                    self._jobs.appendleft(failed._replace(is_again=True))
                    return
                self.timeouts += failure == "timeout"
                self.crashes += failure == "crash"
                self._changed.notify(len(batch))
            failed.deliver(Score(value=None, failure=failure))
            return

    def _take(self) -> collections.deque[_Job]:
        """The next batch; empty when the pool closes.

        A keeper takes its share of what waits, so that others find work too.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._is_closed)
            if self._is_closed:
                return collections.deque()
            share = -(-len(self._jobs) // len(self._keepers))
            num = min(share, self._batch_max)
            return collections.deque(self._jobs.popleft() for _ in range(num))

    def _score_batch(
        self, worker: WorkerProcess, batch: collections.deque[_Job]
    ) -> str | None:
        """Deliver the batch's scores and drop them from it, up to a failure."""
        timeout_s = self._reward.timeout_s
        try:
            message = [(frame.prompt_fields(job.prompt), job.text) for job in batch]
            worker.send(message, timeout_s)
            while batch:
                result = frame.score_of(worker.receive(timeout_s))
                batch.popleft().deliver(result)
        except TimeoutError:
            return "timeout"
        # A frame that is no score comes from a worker that something took over.
        except (WorkerDiedError, frame.FrameError):
            return "crash"
        return None

    def _give_up(self, reason: str, cause: BaseException | None = None) -> None:
        with self._changed:
            self._broken = reason
        error = RuntimeError(reason)
        error.__cause__ = cause
        # First, so that the run does not train on what follows.
        self._on_failed(error)
        self._fail_all(f"error: {reason}")

    def _fail_all(self, failure: str) -> None:
        with self._changed:
            jobs = list(self._jobs)
            self._jobs.clear()
        for job in jobs:
            job.deliver(Score(value=None, failure=failure))
