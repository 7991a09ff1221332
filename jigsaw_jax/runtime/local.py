"""One process: sampler and learner threads around the pipeline's state machine.

    RewardPool --scores--+                       +--commands--> sampler thread (slots)
    sampler ---samples---+-> events -> Pipeline -+--commands--> learner thread (steps)
    learner ---steps-----+    (one queue)        +--text------> RewardPool

The control loop below is the only place that applies events. It decides nothing: it
carries each effect to the thread that does it and each answer back. Payloads stay in
`Payloads`, weights go through `Publisher`, files through `Record`.
"""

import os
import pathlib
import queue
from collections.abc import Callable, Iterable
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import Effect, Event, Sample, SampleId, Score
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.compilations import CompilationCounter
from jigsaw_jax.runtime.evaluation import (
    EvaluationScored,
    completion_pieces,
    completion_text,
)
from jigsaw_jax.runtime.inputs import prompts_again
from jigsaw_jax.runtime.payloads import Payloads
from jigsaw_jax.runtime.progress import Progress
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.runtime.scoring import ScoringDesk
from jigsaw_jax.runtime.signals import Signals
from jigsaw_jax.runtime.start import Crew, start
from jigsaw_jax.runtime.threads import ThreadFailed, batches
from jigsaw_jax.schedule.batching import ON_SAMPLES, batch_key
from jigsaw_jax.settings import Train
from jigsaw_jax.store.files import StoreError

# What a thread may take to end the command that it is at.
STOP_S = 30.0


class LocalRuntime:
    """Runs one `Train` from its start, or its last checkpoint, to its end.

    Args:
      train: the run.
      run_dir: where it leaves everything.
      resume: go on from the last checkpoint where there is one.
      operative: the configuration as text, for the run directory.
    """

    def __init__(
        self, train: Train, *, run_dir: pathlib.Path, resume: bool, operative: str
    ) -> None:
        self._train = train
        self._clock = Clock()
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._progress = Progress(train.updates, self._clock)
        self._payloads = Payloads(train.pipeline.samples_per_group)
        self._record = Record(
            train,
            run_dir,
            resume=resume,
            operative=operative,
            clock=self._clock,
            text=self._text,
            pieces=self._pieces,
            fail=lambda error: self._events.put(ThreadFailed("writing", error)),
        )
        self._stops = 0
        self._is_evaluating = False
        self._publish_started_s: dict[int, float] = {}
        self._finished: records.Finish | None = None

    def run(self) -> int:
        """Train; 0 when the run ended or was stopped, 1 when it can't go on."""
        is_whole = False
        try:
            code = self._run()
            is_whole = True
        finally:
            if not is_whole:
                self._record.abandon()
        return code

    def _run(self) -> int:
        compilations = CompilationCounter()
        crew = self._crew = start(
            self._train,
            self._record,
            clock=self._clock,
            progress=self._progress,
            post=self._events.put,
            keep=self._payloads.add_sample,
        )
        self._desk = ScoringDesk(
            crew.pool.submit,
            self._deliver_score,
            samples_per_group=self._train.pipeline.samples_per_group,
            shuffled=self._train.reward.shuffled,
        )
        try:
            with Signals(self._stop_requested):
                if not crew.is_resumed:
                    self._evaluate_idle("before")
                    self._save(0, crew.pipeline.snapshot(), self._record.log_state())
                compilations.count = 0
                self._serve(crew)
            return self._end(crew, compilations)
        finally:
            crew.pool.close()
            # A thread inside a device call when the interpreter ends aborts it.
            for worker in (crew.learner, crew.sampler):
                worker.thread.stop(STOP_S)
            self._progress.stop()

    # The control loop.

    def _serve(self, crew: Crew) -> None:
        self._progress.start(crew.pipeline.updates_done)
        for worker in (crew.sampler, crew.learner):
            worker.thread.start()
        outstanding = crew.pipeline.outstanding()
        self._payloads.add_prompts(prompts_again(crew.parts.source, outstanding))
        now_s = self._clock.now_s()
        self._carry(crew.pipeline.start(now_s))
        slots = self._train.sampler.slots
        self._apply(records.WorkerJoined(now_s=now_s, worker="local", slots=slots))
        # Reports on samples that came together complete groups that share a hand-off.
        arrivals = batches(self._events, batch_key)
        # A run that had ended when it was resumed is finished before any event.
        while self._finished is None:
            items = next(arrivals)
            started_s = self._clock.now_s()
            self._take(items)
            self._record.control_s += self._clock.now_s() - started_s

    def _take(self, items: list[Any]) -> None:
        first = items[0]
        if isinstance(first, ThreadFailed):
            if isinstance(first.error, StoreError):
                raise first.error
            raise RuntimeError(f"the {first.thread} thread failed") from first.error
        if isinstance(first, EvaluationScored):
            self._log_evaluation(first)
        elif isinstance(first, ON_SAMPLES):
            self._record.started(items)
            self._carry(self._crew.pipeline.apply(*items))
        else:
            self._apply(first)

    def _apply(self, event: Event) -> None:
        if isinstance(event, records.VersionPublished):
            start_s = self._publish_started_s.pop(event.version)
            self._record.published(event.version, start_s, event.now_s)
        pipeline = self._crew.pipeline
        # The step may end its round, whose last update it still is.
        standing = {"version": pipeline.version, "round": pipeline.round}
        effects = pipeline.apply(event)
        if not isinstance(event, records.UpdateStepped):
            self._carry(effects)
            if isinstance(event, records.VersionPublished):
                self._evaluate_when_due()
            return
        # The next work goes out first, so that no device waits for the log; but what
        # a checkpoint holds includes this update's record.
        late = (records.WriteCheckpoint, records.Finish)
        self._carry(effect for effect in effects if not isinstance(effect, late))
        self._log_update(event, standing)
        self._carry(effect for effect in effects if isinstance(effect, late))

    def _carry(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            _CARRIERS[type(effect)](self, effect)

    def _request_prompts(self, effect: records.RequestPrompts) -> None:
        first = self._crew.pipeline.next_prompt_index
        source = self._crew.parts.source
        prompts = [source.prompt(first + i) for i in range(effect.num)]
        self._payloads.add_prompts(prompts)
        uids = tuple(prompt.uid for prompt in prompts)
        self._apply(records.PromptsOffered(now_s=self._clock.now_s(), uids=uids))

    def _admit_sample(self, effect: records.AdmitSample) -> None:
        prompt = self._payloads.prompt(effect.id.uid)
        self._record.admitted(self._clock.now_s())
        self._crew.sampler.thread.do(self._crew.sampler.admit, effect, prompt)

    def _cancel_sample(self, effect: records.CancelSample) -> None:
        self._crew.sampler.thread.do(self._crew.sampler.cancel, effect)

    def _pause_sample(self, effect: records.PauseSample) -> None:
        self._crew.sampler.thread.do(self._crew.sampler.pause, effect)

    def _score_sample(self, effect: records.ScoreSample) -> None:
        sample = self._payloads.sample(effect.id, effect.attempt)
        prompt = self._payloads.prompt(effect.id.uid)
        self._desk.score(prompt, sample, self._text(sample))

    def _deliver_score(self, sample_id: SampleId, attempt: int, score: Score) -> None:
        self._payloads.add_score(sample_id, attempt, score)
        self._events.put(
            records.SampleScored(
                now_s=self._clock.now_s(),
                id=sample_id,
                attempt=attempt,
                value=score.value,
            )
        )

    def _accumulate_groups(self, effect: records.AccumulateGroups) -> None:
        groups = [
            self._payloads.group(group_id, order)
            for group_id, order in zip(effect.groups, effect.orders, strict=True)
        ]
        self._record.handed(effect.update, groups, self._clock.now_s())
        learner = self._crew.learner
        learner.thread.do(learner.accumulate, groups, effect.update)

    def _step_update(self, effect: records.StepUpdate) -> None:
        self._crew.learner.thread.do(self._crew.learner.step, effect)

    def _publish_version(self, effect: records.PublishVersion) -> None:
        def send(params: Any, version: int) -> None:
            self._crew.publisher.publish(
                params, version, sampler=self._crew.sampler, report=self._report_publish
            )

        learner = self._crew.learner
        learner.thread.do(learner.publish, effect.version, send)

    def _report_publish(self, version: int, start_s: float, end_s: float) -> None:
        self._publish_started_s[version] = start_s
        self._events.put(records.VersionPublished(now_s=end_s, version=version))

    def _write_checkpoint(self, effect: records.WriteCheckpoint) -> None:
        snapshot, logs = self._crew.pipeline.snapshot(), self._record.log_state()
        self._crew.learner.thread.do(
            self._save, effect.updates, snapshot, logs, effect.is_final
        )

    def _drop_group(self, effect: records.DropGroup) -> None:
        if self._payloads.is_complete(effect.group):
            group = self._payloads.group(effect.group, effect.order)
            self._record.dropped(group, effect.reason)
        can_redraw = effect.group.draw < self._train.pipeline.redraws_max
        self._payloads.free(
            effect.group,
            keep_prompt=can_redraw and effect.reason == "zero_variance",
        )

    def _finish(self, effect: records.Finish) -> None:
        self._finished = effect

    def _log_update(
        self, event: records.UpdateStepped, standing: dict[str, int]
    ) -> None:
        record, groups = self._record.stepped(
            event,
            standing,
            pipeline=self._crew.pipeline,
            learner=self._crew.learner,
            sampler=self._crew.sampler,
            timeouts=self._crew.pool.timeouts,
        )
        self._progress.show(record)
        for group in groups:
            self._payloads.free(group.id)

    def _text(self, sample: Sample) -> str:
        return completion_text(self._crew.parts.tokenizer, sample)

    def _pieces(self, sample: Sample) -> list[str]:
        return completion_pieces(self._crew.parts.tokenizer, sample)

    def _save(
        self,
        updates: int,
        snapshot: dict[str, Any],
        logs: dict[str, Any],
        is_final: bool = False,
    ) -> None:
        """On the learner's thread (or before it runs): state and record, one commit."""
        learner, publisher = self._crew.learner, self._crew.publisher

        def durable(updates: int) -> None:
            now_s = self._clock.now_s()
            self._events.put(records.CheckpointDurable(now_s=now_s, updates=updates))

        def write(state: Any) -> None:
            self._record.save(
                updates,
                state,
                published=None if learner.is_published else publisher.params,
                pipeline=snapshot,
                logs=logs,
                wait=is_final,
                on_durable=durable,
            )

        learner.save(write)

    # Evaluation.

    def _evaluate_idle(self, when: str) -> None:
        """Evaluate on this thread, with no other at work."""
        evaluator = self._crew.evaluator
        if self._train.evaluation.every < 0 or not evaluator.num_requests:
            return
        result = evaluator.run(self._crew.loop)
        self._record.evaluated(self._crew.pipeline.updates_done, result)
        self._progress.say(
            f"held-out accuracy {when} training: {result.accuracy:.3f} "
            f"({result.problems} problems)"
        )

    def _evaluate_when_due(self) -> None:
        """Evaluate beside the run: its requests share the slots.

        One at a time, since each makes the same requests; one that falls due meanwhile
        begins at the first publish behind it.
        """
        done = self._crew.pipeline.updates_done
        if self._is_evaluating or not self._record.is_evaluation_due(done):
            return
        self._is_evaluating = True
        evaluator, sampler = self._crew.evaluator, self._crew.sampler
        receive = evaluator.begin(
            lambda result: self._events.put(EvaluationScored(done, result))
        )
        for request in evaluator.requests():
            sampler.thread.do(sampler.submit_guest, request, receive)

    def _log_evaluation(self, scored: EvaluationScored) -> None:
        self._is_evaluating = False
        self._record.evaluated(scored.updates, scored.result)
        self._progress.say(
            f"held-out accuracy after {scored.updates} updates: "
            f"{scored.result.accuracy:.3f}"
        )

    # The end.

    def _end(self, crew: Crew, compilations: CompilationCounter) -> int:
        assert self._finished is not None
        for worker in (crew.learner, crew.sampler):
            worker.thread.stop()
        num_compilations = compilations.count
        if self._is_evaluating:
            # Its answers would come too late, and the last one makes the same requests.
            for request in crew.evaluator.requests():
                crew.loop.cancel(request.id, request.attempt)
        if crew.pipeline.updates_done >= self._train.updates:
            params = crew.publisher.load(crew.parts.learner.export_params())
            # The last weights are new to the sampler unless they were published.
            is_new = not crew.learner.is_published
            crew.loop.set_params(params, crew.pipeline.version + is_new)
            self._evaluate_idle("after")
            self._record.export(crew.parts.learner.params, crew.parts.tokenizer)
        self._record.close(pipeline=crew.pipeline, compilations=num_compilations)
        if self._finished.error is not None:
            self._progress.say(f"error: {self._finished.error}")
            return 1
        return 0

    def _stop_requested(self) -> None:
        self._stops += 1
        if self._stops > 1:
            # The live line hides the cursor, and nothing after this would show it.
            self._progress.stop()
            self._crew.pool.close()
            os._exit(130)
        self._progress.say(
            "stopping: finishing the update and saving; Ctrl-C again stops now"
        )
        self._events.put(records.StopRequested(now_s=self._clock.now_s()))


_CARRIERS: dict[type[Effect], Callable[[LocalRuntime, Any], None]] = {
    records.RequestPrompts: LocalRuntime._request_prompts,
    records.AdmitSample: LocalRuntime._admit_sample,
    records.CancelSample: LocalRuntime._cancel_sample,
    records.PauseSample: LocalRuntime._pause_sample,
    records.ScoreSample: LocalRuntime._score_sample,
    records.AccumulateGroups: LocalRuntime._accumulate_groups,
    records.StepUpdate: LocalRuntime._step_update,
    records.PublishVersion: LocalRuntime._publish_version,
    records.WriteCheckpoint: LocalRuntime._write_checkpoint,
    records.DropGroup: LocalRuntime._drop_group,
    records.Finish: LocalRuntime._finish,
}
