"""Carries the pipeline's effects in virtual time, as `runtime.local` does in real time.

    workers ---samples---+
    rewards ---scores----+-> inbox -> Pipeline.apply -> effects -> workers, rewards,
    learner ---steps-----+  (a flush)                              learner

It decides nothing: every decision is the machine's in `schedule/`. Reports on samples
that come at the same virtual time are applied in one call, as a real run's are.
"""

import functools
import heapq
from collections.abc import Callable, Iterable
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import Effect, Event, GroupId, SampleId
from jigsaw_jax.schedule.batching import batches
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import fleet
from jigsaw_jax.simulation.agenda import Agenda
from jigsaw_jax.simulation.fleet import Member
from jigsaw_jax.simulation.learner import Learner
from jigsaw_jax.simulation.prices import Prices
from jigsaw_jax.simulation.sampler import Job, Worker
from jigsaw_jax.simulation.trace import Trace
from jigsaw_jax.simulation.workload import Workload, uid

# Far more updates than any simulation does: it ends by its rounds.
_UPDATES = 10**9


class StuckError(RuntimeError):
    """The run can't go on although it has not ended; its message says where it is."""


class Shell:
    """One simulated run.

    Args:
      train: the run.
      prices: what work costs.
      workload: what is sampled.
      seed: of stragglers and failures.
      keeps_events: whether the trace keeps every interval.

    Attributes:
      trace: what happened.
      pipeline: the machine.
      agenda: virtual time.
    """

    def __init__(
        self,
        train: Train,
        prices: Prices,
        workload: Workload,
        *,
        seed: int,
        keeps_events: bool = False,
    ) -> None:
        self._train, self._prices, self._workload = train, prices, workload
        self._seed = seed
        self.agenda = Agenda()
        self.trace = Trace(keeps_events=keeps_events)
        self.pipeline = Pipeline(
            train.pipeline,
            updates=_UPDATES,
            checkpoint_every=train.store.checkpoint_every,
        )
        self._inbox: list[Event] = []
        self._joined_s: dict[str, float] = {}
        self._workers: dict[str, Worker] = {}
        self._homes: dict[SampleId, str] = {}
        self._tokens: dict[GroupId, dict[int, int]] = {}
        self._pool = [0.0] * train.reward.processes
        self._finish: records.Finish | None = None
        self._round = -1
        # Whether samplers are slower while the learner computes, and whether it does.
        self._is_felt = any(member.decode.beside for member in prices.members)
        self._is_computing = False
        self._learner = Learner(
            prices.training,
            agenda=self.agenda,
            lengths=self._lengths,
            is_sampling=self._is_sampling,
            post=self._post,
            log=self._learned,
        )

    def run(self) -> Trace:
        """Simulate the rounds of the settings and the start of the next.

        Returns:
          What happened.

        Raises:
          StuckError: nothing is left to happen, or the pipeline gave up.
        """
        self._carry(self.pipeline.start(0.0))
        for member in self._prices.members:
            self._join(member, 0)
        while not self._is_over():
            if self._finish is not None or not self.agenda.step():
                why = self._finish.error if self._finish else "no event is left"
                raise StuckError(
                    f"the simulated run must go on, got stuck in round "
                    f"{self.pipeline.round} at {self.agenda.now_s:.1f} s: {why}"
                )
        self.trace.windows[-1].end_s = self.agenda.now_s
        for member in self._prices.members:
            if member.name in self._workers:
                self._account(member)
        return self.trace

    def _is_over(self) -> bool:
        """Whether the last round has been simulated; async's updates are its rounds."""
        rounds, pipeline = self._train.simulation.rounds, self._train.pipeline
        if pipeline.mode != "async":
            return self._round >= rounds
        updates = rounds * pipeline.groups_per_round // pipeline.groups_per_update
        return self.pipeline.updates_done >= updates

    # Reports to the machine.

    def _post(self, event: Event) -> None:
        if not self._inbox:
            self.agenda.after(0.0, self._flush)
        self._inbox.append(event)

    def _flush(self) -> None:
        events, self._inbox = self._inbox, []
        for batch in batches(events):
            self._take(batch)

    def _take(self, events: list[Event]) -> None:
        effects = self.pipeline.apply(*events)
        if isinstance(events[0], records.UpdateStepped):
            self.trace.ages.append(self.pipeline.staleness)
        self._carry(effects)

    def _carry(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            _CARRIERS[type(effect)](self, effect)

    # What the parts report.

    def _started(self, job: Job) -> None:
        now_s = self.agenda.now_s
        self._post(records.SampleStarted(now_s=now_s, id=job.id, attempt=job.attempt))

    def _finished(self, job: Job) -> None:
        tokens = self._workload.tokens(job.id)
        home = self._homes.pop(job.id)
        lane = f"{home}/{job.lane:03d}"
        self.trace.sampled(job, lane, tokens, self.agenda.now_s)
        own = self._tokens.setdefault(GroupId(job.id.uid, job.id.draw), {})
        own[job.id.sample] = tokens
        report_s = self._workers[home].decode.report_s
        event = records.SampleFinished(
            now_s=self.agenda.now_s + report_s,
            id=job.id,
            attempt=job.attempt,
            num_tokens=tokens,
            version_min=job.version,
        )
        if report_s:
            self.agenda.after(report_s, self._post, event)
        else:
            self._post(event)

    def _is_sampling(self) -> bool:
        return any(worker.is_decoding for worker in self._workers.values())

    def _timed(self, worker: str, sequences: int, step_s: float) -> None:
        self._post(
            records.StepTimed(
                now_s=self.agenda.now_s,
                worker=worker,
                sequences=sequences,
                step_s=step_s,
            )
        )

    def _lengths(self, group: GroupId) -> list[int]:
        prompt = self._train.simulation.workload.prompt_tokens
        return [prompt + tokens for tokens in self._tokens[group].values()]

    def _learned(
        self,
        name: str,
        start_s: float,
        end_s: float,
        number: int,
        groups: tuple[GroupId, ...],
    ) -> None:
        sizes: dict[str, Any] = {}
        if name == "accumulate":
            prompt = self._train.simulation.workload.prompt_tokens
            tokens = sum(sum(self._lengths(group)) for group in groups)
            sizes = {"tokens": tokens, "prompt_tokens": prompt * len(groups)}
            if (packing := self._prices.training.packing) is not None:
                lengths = [self._lengths(group) for group in groups]
                sizes["rows"] = packing.micro_batches(lengths)
        if self._is_felt and name in ("accumulate", "step"):
            self.agenda.at(start_s, self._beside, True)
            self.agenda.at(end_s, self._beside, False)
        self.trace.learned(name, start_s, end_s, number, groups, **sizes)

    def _beside(self, is_computing: bool) -> None:
        self._is_computing = is_computing
        for worker in self._workers.values():
            worker.set_beside(is_computing)

    # Workers that come and go.

    def _join(self, member: Member, life: int) -> None:
        now_s = self.agenda.now_s
        is_asked = self._train.pipeline.admission == "frontier_adaptive"
        self._workers[member.name] = Worker(
            member.slots,
            decode=member.decode,
            speed=member.speed,
            agenda=self.agenda,
            started=self._started,
            finished=self._finished,
            timed=functools.partial(self._timed, member.name) if is_asked else None,
        )
        self._workers[member.name].set_beside(self._is_computing)
        self._joined_s[member.name] = now_s
        self._post(
            records.WorkerJoined(
                now_s=now_s,
                worker=member.name,
                slots=member.slots,
                incarnation=life + 1,
            )
        )
        seconds = fleet.lifetime_s(self._train, self._seed, member.name, life)
        if seconds is not None:
            self.agenda.after(seconds, self._lose, member, life)

    def _lose(self, member: Member, life: int) -> None:
        self._workers[member.name].lose()
        self._account(member)
        del self._workers[member.name]
        now_s = self.agenda.now_s
        self._post(
            records.WorkerLost(now_s=now_s, worker=member.name, incarnation=life + 1)
        )
        repair_s = self._train.simulation.fleet.repair_s
        self.agenda.after(repair_s, self._join, member, life + 1)

    def _account(self, member: Member) -> None:
        present_s = self.agenda.now_s - self._joined_s[member.name]
        self.trace.offered_s += present_s * member.slots
        self.trace.busy_s += self._workers[member.name].held_s()

    # Effects.

    def _request_prompts(self, effect: records.RequestPrompts) -> None:
        first = self.pipeline.next_prompt_index
        uids = tuple(uid(first + i) for i in range(effect.num))
        event = records.PromptsOffered(now_s=self.agenda.now_s, uids=uids)
        self._carry(self.pipeline.apply(event))

    def _admit_samples(self, effect: records.AdmitSamples) -> None:
        for one in effect.samples:
            self._admit(one)

    def _admit(self, effect: records.AdmitSample) -> None:
        is_async = self._train.pipeline.mode == "async"
        if self.pipeline.round > self._round and not (is_async and self._round >= 0):
            self._round = self.pipeline.round
            self.trace.begin(effect.version, self.agenda.now_s)
        worker = self._workers.get(effect.worker)
        if worker is None:
            # It is lost and the machine is about to hear of it.
            return
        sample = effect.id
        if effect.is_resumed:
            self._resume(effect, worker)
            return
        legs = self._workload.legs(sample)
        waits = [self._workload.tool_s(sample, i) for i in range(len(legs) - 1)]
        self._homes[sample] = effect.worker
        worker.admit(
            Job(
                id=sample,
                attempt=effect.attempt,
                legs=legs,
                tool_s=waits,
                prompt=self._train.simulation.workload.prompt_tokens,
                version=effect.version,
            )
        )

    def _resume(self, effect: records.AdmitSample, worker: Worker) -> None:
        """Go on with a paused sample; one that is nowhere went with its worker."""
        own = self._tokens.get(GroupId(effect.id.uid, effect.id.draw), {})
        if not worker.resume(effect.id) and effect.id.sample not in own:
            self._post(
                records.SampleFailed(
                    now_s=self.agenda.now_s,
                    id=effect.id,
                    attempt=effect.attempt,
                    reason="its worker was lost",
                )
            )

    def _pause_sample(self, effect: records.PauseSample) -> None:
        if effect.worker in self._workers:
            self._workers[effect.worker].pause(effect.id)

    def _cancel_sample(self, effect: records.CancelSample) -> None:
        if effect.worker in self._workers:
            self._workers[effect.worker].cancel(effect.id)

    def _score_sample(self, effect: records.ScoreSample) -> None:
        now_s = self.agenda.now_s
        seconds = self._workload.reward_s(effect.id)
        start_s = now_s
        if self._pool:
            start_s = max(now_s, heapq.heappop(self._pool))
            heapq.heappush(self._pool, start_s + seconds)
        self.trace.scored(GroupId(effect.id.uid, effect.id.draw), seconds)
        event = records.SampleScored(
            now_s=start_s + seconds,
            id=effect.id,
            attempt=effect.attempt,
            value=self._workload.value(effect.id),
        )
        self.agenda.at(event.now_s, self._post, event)

    def _accumulate_groups(self, effect: records.AccumulateGroups) -> None:
        self._learner.accumulate(effect)

    def _step_update(self, effect: records.StepUpdate) -> None:
        self._learner.step(effect)

    def _publish_version(self, effect: records.PublishVersion) -> None:
        self._learner.publish(effect)

    def _write_checkpoint(self, effect: records.WriteCheckpoint) -> None:
        self._learner.save(effect)

    def _drop_group(self, effect: records.DropGroup) -> None:
        self._tokens.pop(effect.group, None)

    def _finish_run(self, effect: records.Finish) -> None:
        self._finish = effect


_CARRIERS: dict[type[Effect], Callable[[Shell, Any], None]] = {
    records.RequestPrompts: Shell._request_prompts,
    records.AdmitSamples: Shell._admit_samples,
    records.CancelSample: Shell._cancel_sample,
    records.PauseSample: Shell._pause_sample,
    records.ScoreSample: Shell._score_sample,
    records.AccumulateGroups: Shell._accumulate_groups,
    records.StepUpdate: Shell._step_update,
    records.PublishVersion: Shell._publish_version,
    records.WriteCheckpoint: Shell._write_checkpoint,
    records.DropGroup: Shell._drop_group,
    records.Finish: Shell._finish_run,
}
