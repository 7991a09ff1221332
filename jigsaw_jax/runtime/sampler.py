"""The sampler's thread: requests in, completions out, weights swapped in between."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jigsaw_jax.records import (
    AdmitSample,
    CancelSample,
    PauseSample,
    Prompt,
    Sample,
    SampleFinished,
    SampleId,
    SampleStarted,
    StepTimed,
)
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.intervals import Intervals, log_sample
from jigsaw_jax.runtime.threads import CommandThread, Turns
from jigsaw_jax.sample.loop import LoopReport, SampleRequest, key_words
from jigsaw_jax.settings import Sampler, Train


@runtime_checkable
class Loop(Protocol):
    """What `SampleLoop` does, here or on every host of a slice."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        ...

    def submit(self, request: SampleRequest) -> None:
        """Queue a request."""
        ...

    def cancel(self, sample_id: SampleId, attempt: int) -> None:
        """Forget an attempt."""
        ...

    def pause(self, sample_id: SampleId, attempt: int) -> None:
        """Free the slot of an attempt and keep what it has sampled."""
        ...

    def resume(self, sample_id: SampleId, attempt: int) -> None:
        """Queue a paused attempt."""
        ...

    def clear(self) -> None:
        """Forget every request."""
        ...

    def set_params(self, params: Any, version: int) -> None:
        """Decode with these weights from the next step on."""
        ...

    def step(self) -> LoopReport:
        """Fill free slots, decode once, and collect what ended."""
        ...


class Span(NamedTuple):
    """Where on the timeline a sample ran."""

    lane: int
    start_s: float
    end_s: float


class SamplerWorker:
    """Owns the sample loop; every method but `__init__` runs on the sampler's thread.

    Args:
      train: the run.
      loop: slots and requests.
      turns: on a device that the learner shares.
      journal: the event log.
      clock: of the run.
      post: takes events.
      keep: takes completions, and which lane each had, from when to when.

    Attributes:
      thread: where the loop runs.
      busy: (start_s, end_s, tokens) of each device call.
    """

    def __init__(
        self,
        train: Train,
        loop: Loop,
        *,
        turns: Turns,
        journal: Intervals,
        clock: Clock,
        post: Callable[[Any], None],
        keep: Callable[[Sample, Span], None],
    ) -> None:
        self._train = train
        self._loop = loop
        self._turns = turns
        self._journal = journal
        self._clock = clock
        self._post = post
        self._keep = keep
        self._lanes = _Lanes()
        self._guests: dict[str, Callable[[Sample], None]] = {}
        is_asked = train.pipeline.admission == "frontier_adaptive"
        self._times = StepTimes(train.sampler.steps_per_call) if is_asked else None
        self.busy: collections.deque[tuple[float, float, int]] = collections.deque()
        self.thread = CommandThread("sampler", post, work=self._pump)

    def admit(self, effect: AdmitSample, prompt: Prompt) -> None:
        """Queue one sample of the run, or let it go on where it was stopped."""
        if effect.is_resumed:
            self._loop.resume(effect.id, effect.attempt)
            return
        self._loop.submit(
            request_for(
                self._train, prompt, effect.id, self._train.sampler, effect.attempt
            )
        )

    def cancel(self, effect: CancelSample) -> None:
        """Stop an attempt; its slot is free at once."""
        self._loop.cancel(effect.id, effect.attempt)
        self._lanes.leave(effect.id)

    def pause(self, effect: PauseSample) -> None:
        """Stop an attempt, its slot free at once, and keep what it has sampled."""
        self._loop.pause(effect.id, effect.attempt)
        self._lanes.leave(effect.id)

    def submit_guest(
        self, request: SampleRequest, receive: Callable[[Sample], None]
    ) -> None:
        """Queue a completion that is not the pipeline's, for evaluation."""
        self._guests[request.id.uid] = receive
        self._loop.submit(request)

    def reset(self) -> None:
        """Forget every request, of the run and of guests."""
        self._loop.clear()
        self._lanes = _Lanes()
        self._guests.clear()

    def set_params(self, params: Any, version: int, then: Callable[[], None]) -> None:
        """Swap weights between two decode steps, then report."""
        self._loop.set_params(params, version)
        then()

    def _pump(self) -> bool:
        if self._loop.is_idle:
            return False
        with self._turns.turn():
            start_s = self._clock.now_s()
            report = self._loop.step()
            end_s = self._clock.now_s()
        self.busy.append((start_s, end_s, report.num_tokens))
        self._journal.interval(
            "sampler",
            "decode",
            start_s,
            end_s,
            active=report.num_active,
            tokens=report.num_tokens,
        )
        if self._times is not None:
            timed = self._times.of(report, start_s, end_s)
            if timed is not None:
                self._post(timed)
        self._report(report, start_s, end_s)
        return not self._loop.is_idle

    def _report(self, report: LoopReport, start_s: float, end_s: float) -> None:
        for sample_id, attempt in report.started:
            self._lanes.enter(sample_id, start_s)
            if sample_id.uid not in self._guests:
                self._post(SampleStarted(now_s=start_s, id=sample_id, attempt=attempt))
        for sample in report.finished:
            lane, start_s = self._lanes.leave(sample.id)
            span = Span(lane, start_s, end_s)
            receive = self._guests.get(sample.id.uid)
            if receive is not None:
                log_slot(self._journal, sample, span)
                receive(sample)
                continue
            self._keep(sample, span)
            self._post(
                SampleFinished(
                    now_s=end_s,
                    id=sample.id,
                    attempt=sample.attempt,
                    num_tokens=sample.num_sampled,
                    version_min=sample.version_min,
                )
            )


def log_slot(journal: Intervals, sample: Sample, span: Span) -> None:
    """Record which lane a completion had."""
    log_sample(
        journal,
        f"{span.lane:02d}",
        (span.start_s, span.end_s),
        sample_id=sample.id,
        num_tokens=sample.num_sampled,
        version=sample.version_min,
        finish=sample.finish_reason.value,
    )


class StepTimes:
    """How long decode steps take, said when company changes.

    Args:
      steps_per_call: of a device call.
    """

    def __init__(self, steps_per_call: int) -> None:
        self._steps_per_call = steps_per_call
        self._active: int | None = None

    def of(self, report: LoopReport, start_s: float, end_s: float) -> StepTimed | None:
        """The event to report behind a device call, or None.

        A call in which something starts prefills too, and one that ends early has
        fewer steps than it shows.
        """
        active = report.num_active
        is_whole = report.num_tokens == active * self._steps_per_call
        if active in (0, self._active) or report.started or not is_whole:
            return None
        self._active = active
        step_s = (end_s - start_s) / self._steps_per_call
        return StepTimed(now_s=end_s, worker="local", sequences=active, step_s=step_s)


def request_for(
    train: Train,
    prompt: Prompt,
    sample_id: SampleId,
    sampler: Sampler,
    attempt: int = 0,
) -> SampleRequest:
    """The engine's request for one sample of a prompt."""
    return SampleRequest(
        id=sample_id,
        attempt=attempt,
        prompt_tokens=prompt.tokens,
        key_words=key_words(train.seed, train.pipeline_name, sample_id),
        temperature=sampler.temperature,
        top_k=sampler.top_k,
        top_p=sampler.top_p,
        new_tokens_max=sampler.new_tokens_max,
    )


class _Lanes:
    """Rows of the timeline: each running sample has the lowest free one."""

    def __init__(self) -> None:
        self._taken: dict[SampleId, tuple[int, float]] = {}

    def enter(self, sample_id: SampleId, start_s: float) -> None:
        used = {lane for lane, _ in self._taken.values()}
        lane = next(i for i in range(len(used) + 1) if i not in used)
        self._taken[sample_id] = (lane, start_s)

    def leave(self, sample_id: SampleId) -> tuple[int, float]:
        return self._taken.pop(sample_id, (0, 0.0))
