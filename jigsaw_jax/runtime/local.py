"""One process: sampler and learner threads around the pipeline's state machine.

    RewardPool --scores--+                       +--commands--> sampler thread (slots)
    sampler ---samples---+-> events -> Control  -+--commands--> learner thread (steps)
    learner ---steps-----+    (one queue)        +--text------> RewardPool

Weights go through `Publisher`, checkpoints are written from the learner's thread.
"""

import collections
import os
import pathlib
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import Event, Group, GroupId, Prompt, Sample, Score
from jigsaw_jax.reward.pool import KILL_S
from jigsaw_jax.runtime import signals
from jigsaw_jax.runtime.compilations import CompilationCounter
from jigsaw_jax.runtime.control import Control
from jigsaw_jax.runtime.evaluation import completion_text, sample_all
from jigsaw_jax.runtime.export import export_policy
from jigsaw_jax.runtime.seat import Seat
from jigsaw_jax.runtime.start import Team, start
from jigsaw_jax.runtime.threads import sleep_until
from jigsaw_jax.sample.loop import SampleRequest
from jigsaw_jax.settings import Train

# What a thread may take to end the command that it is at.
STOP_S = 30.0


class LocalCrew:
    """Threads of this process; see `Crew`.

    Args:
      seat: where it works.
      team: built and warm.

    Attributes:
      pipeline: the state machine.
      source: training problems.
      tokenizer: text to tokens and back.
      evaluator: held-out accuracy.
      is_resumed: whether a checkpoint was loaded.
      learner_busy: when the learner computed.
      sampler_busy: when the sampler did.
    """

    def __init__(self, seat: Seat, team: Team) -> None:
        self._train = seat.train
        self._record = seat.record
        self._team = team
        self._clock = seat.clock
        self._post = seat.post
        self._published = seat.published
        self._sampler, self._learner = team.sampler, team.learner
        self._compilations = CompilationCounter()
        self.pipeline = team.pipeline
        self.source = team.parts.source
        self.tokenizer = team.parts.tokenizer
        self.evaluator = team.evaluator
        self.is_resumed = team.is_resumed
        self.learner_busy: collections.deque[tuple[float, float]]
        self.learner_busy = team.learner.busy
        self.sampler_busy: collections.deque[tuple[float, float, int]]
        self.sampler_busy = team.sampler.busy

    def start(self) -> Sequence[Event]:
        """Start the threads; this process is the one sampler."""
        for worker in (self._sampler, self._learner):
            worker.thread.start()
        self._compilations.count = 0
        slots = self._train.sampler.slots
        now_s = self._clock.now_s()
        return [records.WorkerJoined(now_s=now_s, worker="local", slots=slots)]

    def wait(
        self, events: queue.SimpleQueue[Any], timeout_s: float | None
    ) -> list[Any]:
        """Sleep: every thread posts its events itself."""
        return sleep_until(events, timeout_s)

    def flush(self) -> None:
        """Nothing is held back here."""

    def admit(
        self, samples: Sequence[records.AdmitSample], prompt: Callable[[str], Prompt]
    ) -> None:
        """Start samples, or let them go on."""
        for one in samples:
            self._sampler.thread.do(self._sampler.admit, one, prompt(one.id.uid))

    def cancel(self, effect: records.CancelSample) -> None:
        """Stop an attempt."""
        self._sampler.thread.do(self._sampler.cancel, effect)

    def pause(self, effect: records.PauseSample) -> None:
        """Stop an attempt and keep what it has sampled."""
        self._sampler.thread.do(self._sampler.pause, effect)

    def score(
        self, prompt: Prompt, sample: Any, receive: Callable[[Score], None]
    ) -> None:
        """Hand the text to the reward pool."""
        text = completion_text(self.tokenizer, sample)
        self._team.pool.submit(prompt, text, receive)

    def sample_guest(
        self, request: SampleRequest, receive: Callable[[Sample], None]
    ) -> None:
        """Sample a completion that is not the pipeline's."""
        self._sampler.thread.do(self._sampler.submit_guest, request, receive)

    def accumulate(self, groups: Sequence[Group], update: int) -> None:
        """Add gradient sums to an update."""
        self._learner.thread.do(self._learner.accumulate, groups, update)

    def step(self, effect: records.StepUpdate) -> None:
        """Step the optimizer."""
        self._learner.thread.do(self._learner.step, effect)

    def publish(self, version: int) -> None:
        """Place the weights on the learner's thread, swap them on the sampler's."""

        def send(params: Any, version: int) -> None:
            self._team.publisher.publish(
                params, version, sampler=self._sampler, report=self._published
            )

        self._learner.thread.do(self._learner.publish, version, send)

    def save(self, updates: int, record: dict[str, Any], *, is_final: bool) -> None:
        """Save from the learner's thread, or before it runs: one commit."""

        def write(state: Any, written: Callable[[], None]) -> None:
            def durable(updates: int) -> None:
                written()
                now_s = self._clock.now_s()
                self._post(records.CheckpointDurable(now_s=now_s, updates=updates))

            is_published = self._learner.is_published
            self._record.vault.save(
                updates,
                state,
                published=None if is_published else self._team.publisher.params,
                record=record,
                wait=is_final,
                on_durable=durable,
            )

        self._learner.thread.do(self._learner.save, write)

    def take_advantages(self, update: int) -> dict[GroupId, list[float]]:
        """What an update's groups trained with."""
        return self._learner.advantages.pop(update)

    def take_metrics(self, update: int) -> dict[str, float]:
        """The learner's numbers of an update."""
        return self._learner.metrics.pop(update)

    def whole(self, group: Group) -> Group:
        """The group; its completions are here."""
        return group

    def forget(self, groups: Iterable[GroupId]) -> None:
        """Nothing is kept here."""

    @property
    def num_timeouts(self) -> int:
        """Scores that hung, so far."""
        return self._team.pool.timeouts

    @property
    def num_compilations(self) -> int:
        """Programs compiled since `start`, until `rest`."""
        return self._compilations.count

    def workers(self) -> list[Mapping[str, Any]]:
        """This process."""
        return [
            {
                "name": "local",
                "pid": os.getpid(),
                "role": "sample+train",
                "version": self._team.loop.version,
                "slots": self._train.sampler.slots,
                "restarts": 0,
            }
        ]

    def sample_idle(self, requests: Iterable[SampleRequest]) -> Iterable[Sample]:
        """Sample on the calling thread."""
        return sample_all(self._team.loop, requests)

    def rest(self) -> None:
        """End both threads behind what is queued; their guests' answers are let go."""
        for worker in (self._learner, self._sampler):
            worker.thread.stop()
        # An evaluation that is cut off makes the same requests as the last one.
        for request in self.evaluator.requests():
            self._team.loop.cancel(request.id, request.attempt)

    def load_last(self) -> None:
        """Give the loop the learner's weights."""
        team = self._team
        params = team.publisher.load(team.parts.learner.export_params())
        # The last weights are new to the sampler unless they were published.
        is_new = not team.learner.is_published
        team.loop.set_params(params, self.pipeline.version + is_new)

    def export(self) -> None:
        """Write the policy as a Hugging Face folder, where `Store.export` asks."""
        if self._train.store.export == "hf":
            params = self._team.parts.learner.params
            path = self._record.export_path
            export_policy(self._train, params, self.tokenizer, path)

    def kill(self) -> None:
        """Leave no process behind; threads end with this one."""
        self._team.pool.close(KILL_S)

    def close(self) -> None:
        """Stop the pool and the threads."""
        self._team.pool.close()
        # A thread inside a device call when the interpreter ends aborts it.
        for worker in (self._learner, self._sampler):
            worker.thread.stop(STOP_S)


class LocalRuntime:
    """Runs one `Train` in this process.

    Args:
      train: the run.
      run_dir: where it leaves everything.
      resume: go on from the last checkpoint where there is one.
      operative: the configuration as text, for the run directory.

    Attributes:
      control: the control loop.
    """

    def __init__(
        self, train: Train, *, run_dir: pathlib.Path, resume: bool, operative: str
    ) -> None:
        self.control = Control(
            train, gather, run_dir=run_dir, resume=resume, operative=operative
        )

    def run(self) -> int:
        """Train; 0 when the run ended or was stopped, 1 when it can't go on."""
        return self.control.run()


def gather(seat: Seat) -> LocalCrew:
    """Build everything in this process; see `crew.Gather`."""
    # Nothing here needs an orderly end: reward processes end with this one.
    with signals.leaving_at_once():
        team = start(seat)
    return LocalCrew(seat, team)
