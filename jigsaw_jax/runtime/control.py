"""The control loop: events to the state machine, its effects to the crew.

    crew --samples, scores, steps--> events -> Pipeline -> effects --> crew
                                   (one queue)

The only place that applies events, whether the crew is made of threads or of processes
on many hosts. It decides nothing: it carries each effect to the crew, and what comes
back to the machine. Payloads stay in `Payloads`, files in `Record`.
"""

import contextlib
import os
import pathlib
import queue
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import Effect, Event, Sample, SampleId, Score
from jigsaw_jax.runtime import collector
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.crew import ClusterLostError, Crew, CrewLostError, Gather
from jigsaw_jax.runtime.errands import Errands
from jigsaw_jax.runtime.evaluation import EvaluationScored, completion_spelled
from jigsaw_jax.runtime.inputs import prompts_again, read_in_parts
from jigsaw_jax.runtime.payloads import Payloads
from jigsaw_jax.runtime.progress import Progress
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.runtime.scoring import ScoringDesk
from jigsaw_jax.runtime.seat import Seat
from jigsaw_jax.runtime.signals import Signals
from jigsaw_jax.runtime.threads import ThreadFailed, arrivals, short_turns
from jigsaw_jax.schedule.batching import ON_SAMPLES, batches
from jigsaw_jax.settings import Train
from jigsaw_jax.store.files import StoreError


class Control:
    """Runs one `Train` from its start, or its last checkpoint, to its end.

    Args:
      train: the run.
      gather: makes the crew.
      run_dir: where the run leaves everything.
      resume: go on from the last checkpoint where there is one.
      operative: the configuration as text, for the run directory.
      holds_state: whether the learner's arrays are in this process, so that their
        checkpoints are written here too.
    """

    def __init__(
        self,
        train: Train,
        gather: Gather,
        *,
        run_dir: pathlib.Path,
        resume: bool,
        operative: str,
        holds_state: bool = True,
    ) -> None:
        self._train = train
        self._gather = gather
        self._holds_state = holds_state
        self._clock = Clock()
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reading = Errands(lambda errands: self._events.put(errands))
        self._settling = Errands(lambda errands: self._events.put(errands))
        self._progress = Progress(train.updates, self._clock)
        self._payloads = Payloads(train.pipeline.samples_per_group)
        self._record = Record(
            train,
            run_dir,
            resume=resume,
            operative=operative,
            clock=self._clock,
            spell=self._spell,
            holds_state=holds_state,
            fail=lambda error: self._events.put(ThreadFailed("writing", error)),
        )
        self._stops = 0
        self._is_evaluating = False
        self._publish_started_s: dict[int, float] = {}
        self._finished: records.Finish | None = None
        self._is_stopped = False

    @property
    def is_stopping(self) -> bool:
        """Whether the user has asked for a stop."""
        return self._stops > 0

    def say(self, text: str) -> None:
        """One line of news for the person who waits."""
        self._progress.say(text)

    def run(self, *, is_stopping: bool = False) -> int:
        """Train; 0 when the run ended or was stopped, 1 when it can't go on.

        Args:
          is_stopping: the user has asked for a stop already.

        Returns:
          The exit code.

        Raises:
          CrewLostError: the learner is gone; the last commit stands.
          ClusterLostError: so is all else.
        """
        if is_stopping:
            self._stops = 1
            self._events.put(records.StopRequested(now_s=self._clock.now_s()))
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._record.abandon)
            code = self._run()
            on_error.pop_all()
        return code

    def _run(self) -> int:
        seat = Seat(
            train=self._train,
            record=self._record,
            clock=self._clock,
            progress=self._progress,
            payloads=self._payloads,
            post=self._events.put,
            published=self._report_publish,
        )
        crew = self._crew = self._gather(seat)
        self._desk = ScoringDesk(
            crew.score,
            self._deliver_score,
            samples_per_group=self._train.pipeline.samples_per_group,
            shuffled=self._train.reward.shuffled,
        )
        try:
            with Signals(self._stop_requested):
                if not crew.is_resumed:
                    self._evaluate_idle("before")
                    self._save(records.WriteCheckpoint(updates=0))
                with contextlib.ExitStack() as answering:
                    if not self._holds_state:
                        answering.enter_context(collector.seldom())
                        answering.enter_context(short_turns())
                    self._serve(crew)
            return self._end(crew)
        finally:
            crew.close()
            self._progress.stop()

    # The control loop.

    def _serve(self, crew: Crew) -> None:
        self._progress.start(crew.pipeline.updates_done)
        joined = crew.start()
        outstanding = crew.pipeline.outstanding()
        self._payloads.add_prompts(prompts_again(crew.source, outstanding))
        self._carry(crew.pipeline.start(self._clock.now_s()))
        for event in joined:
            self._apply(event)
        crew.flush()
        # Reports on samples that came together complete groups that share a hand-off.
        # What is overdue must be seen also where all wait for it and nothing comes.
        coming = arrivals(
            self._events,
            batches,
            wait=crew.wait,
            idle_s=lambda: crew.pipeline.patience_s,
            idle=lambda: records.TimePassed(now_s=self._clock.now_s()),
        )
        # A run that had ended when it was resumed is finished before any event.
        while self._finished is None:
            items = next(coming)
            started_s = self._clock.now_s()
            self._take(items)
            crew.flush()
            self._record.control_s += self._clock.now_s() - started_s

    def _take(self, items: list[Any]) -> None:
        first = items[0]
        if isinstance(first, ThreadFailed):
            if isinstance(first.error, (StoreError, CrewLostError, ClusterLostError)):
                raise first.error
            raise RuntimeError(f"the {first.thread} thread failed") from first.error
        if isinstance(first, Errands):
            first.go_on()
        elif isinstance(first, EvaluationScored):
            self._log_evaluation(first)
        elif type(first) in ON_SAMPLES:
            self._record.started(items)
            self._carry(self._crew.pipeline.apply(*items))
        else:
            self._apply(first)

    def _apply(self, event: Event) -> None:
        self._is_stopped |= isinstance(event, records.StopRequested)
        if isinstance(event, records.VersionPublished):
            start_s = self._publish_started_s.pop(event.version)
            self._record.published(event.version, start_s, event.now_s)
        if isinstance(event, records.UpdateStepped):
            # Its record has all of its groups.
            self._settling.finish()
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
        self._crew.flush()
        self._log_update(event, standing)
        self._carry(effect for effect in effects if isinstance(effect, late))

    def _carry(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            _CARRIERS[type(effect)](self, effect)

    def _request_prompts(self, effect: records.RequestPrompts) -> None:
        self._reading.add(self._read_prompts(effect.num))

    def _read_prompts(self, num: int) -> Iterator[None]:
        # One request is answered after the other, so this is where the last one ended.
        first = self._crew.pipeline.next_prompt_index
        uids: list[str] = []
        for prompts in read_in_parts(self._crew.source, first, num):
            self._payloads.add_prompts(prompts)
            uids += [prompt.uid for prompt in prompts]
            if len(uids) < num:
                yield
        now_s = self._clock.now_s()
        self._apply(records.PromptsOffered(now_s=now_s, uids=tuple(uids)))

    def _admit_samples(self, effect: records.AdmitSamples) -> None:
        self._record.admitted()
        self._crew.admit(effect.samples, self._payloads.prompt)

    def _score_sample(self, effect: records.ScoreSample) -> None:
        sample = self._payloads.sample(effect.id, effect.attempt)
        self._desk.score(self._payloads.prompt(effect.id.uid), sample)

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
        self._crew.accumulate(groups, effect.update)
        # They are the learner's now; where it is lost, the checkpoint has their uids.
        self._settling.add(self._record.settle(effect.update, groups, free=self._free))

    def _report_publish(self, version: int, start_s: float, end_s: float) -> None:
        self._publish_started_s[version] = start_s
        self._events.put(records.VersionPublished(now_s=end_s, version=version))

    def _save(self, effect: records.WriteCheckpoint) -> None:
        snapshot = self._crew.pipeline.snapshot()
        record = self._record.commit_record(effect.updates, snapshot)
        self._crew.save(effect.updates, record, is_final=effect.is_final)

    def _drop_group(self, effect: records.DropGroup) -> None:
        if self._payloads.is_complete(effect.group):
            group = self._payloads.group(effect.group, effect.order)
            self._record.dropped(group, effect.reason)
        can_redraw = effect.group.draw < self._train.pipeline.redraws_max
        is_drawn_anew = can_redraw and effect.reason == "zero_variance"
        self._free((effect.group,), keep_prompts=is_drawn_anew)

    def _free(
        self, groups: Iterable[records.GroupId], *, keep_prompts: bool = False
    ) -> None:
        self._payloads.free(groups, keep_prompts=keep_prompts)
        self._crew.forget(groups)

    def _finish(self, effect: records.Finish) -> None:
        self._finished = effect

    def _log_update(
        self, event: records.UpdateStepped, standing: dict[str, int]
    ) -> None:
        crew = self._crew
        record = self._record.stepped(
            event,
            standing | {"reward/timeouts": crew.num_timeouts},
            pipeline=crew.pipeline,
            metrics=crew.take_metrics(event.update),
            advantages=crew.take_advantages(event.update),
            learner_busy=crew.learner_busy,
            sampler_busy=crew.sampler_busy,
            whole=crew.whole,
        )
        self._progress.show(record)
        self._settling.add(self._record.let_go())

    def _spell(self, sample: Sample) -> tuple[str, list[str]]:
        return completion_spelled(self._crew.tokenizer, sample)

    # Evaluation.

    def _evaluate_idle(self, when: str) -> None:
        """Evaluate and wait, with nothing else at work."""
        crew, evaluator = self._crew, self._crew.evaluator
        if self._train.evaluation.every < 0 or not evaluator.num_requests:
            return
        result = evaluator.result(crew.sample_idle(evaluator.requests()))
        self._record.evaluated(crew.pipeline.updates_done, result)
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
        evaluator = self._crew.evaluator
        receive = evaluator.begin(
            lambda result: self._events.put(EvaluationScored(done, result))
        )
        for request in evaluator.requests():
            self._crew.sample_guest(request, receive)

    def _log_evaluation(self, scored: EvaluationScored) -> None:
        self._is_evaluating = False
        self._record.evaluated(scored.updates, scored.result)
        updates, accuracy = scored.updates, scored.result.accuracy
        self.say(f"held-out accuracy after {updates} updates: {accuracy:.3f}")

    # The end.

    def _end(self, crew: Crew) -> int:
        assert self._finished is not None
        crew.rest()
        num_compilations = crew.num_compilations
        is_done = crew.pipeline.updates_done >= self._train.updates
        if is_done:
            crew.load_last()
            self._evaluate_idle("after")
            crew.export()
        self._record.close(
            pipeline=crew.pipeline,
            compilations=num_compilations,
            whole=crew.whole,
            workers=crew.workers(),
            is_stopped=self._is_stopped and not is_done,
        )
        if self._finished.error is not None:
            self._progress.say(f"error: {self._finished.error}")
            return 1
        return 0

    def _stop_requested(self) -> None:
        self._stops += 1
        if self._stops > 1:
            # The live line hides the cursor, and nothing after this would show it.
            self._progress.stop()
            self._crew.kill()
            os._exit(130)
        self.say(
            "stopping: finishing the update and saving, from where the same command "
            "goes on; Ctrl-C again stops now"
        )
        self._events.put(records.StopRequested(now_s=self._clock.now_s()))


_CARRIERS: dict[type[Effect], Callable[[Control, Any], None]] = {
    records.RequestPrompts: Control._request_prompts,
    records.AdmitSamples: Control._admit_samples,
    records.CancelSample: lambda control, told: control._crew.cancel(told),
    records.PauseSample: lambda control, told: control._crew.pause(told),
    records.ScoreSample: Control._score_sample,
    records.AccumulateGroups: Control._accumulate_groups,
    records.StepUpdate: lambda control, told: control._crew.step(told),
    records.PublishVersion: lambda control, told: control._crew.publish(told.version),
    records.WriteCheckpoint: Control._save,
    records.DropGroup: Control._drop_group,
    records.Finish: Control._finish,
}
