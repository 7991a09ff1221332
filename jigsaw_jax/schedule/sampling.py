"""The sampler's side: open groups, from their opening to their hand-off or drop."""

import collections
import math
from collections.abc import Callable

from jigsaw_jax import records
from jigsaw_jax.records import Effect, GroupId, SampleId
from jigsaw_jax.schedule.admission import admission
from jigsaw_jax.schedule.deadlines import Deadlines
from jigsaw_jax.schedule.gap import Gap
from jigsaw_jax.schedule.groups import OpenGroup
from jigsaw_jax.schedule.ledger import Ledger, State
from jigsaw_jax.schedule.lengths import Lengths
from jigsaw_jax.schedule.requests import Requests
from jigsaw_jax.schedule.slots import Slots
from jigsaw_jax.settings import Pipeline

# Only an environment's answer lets a finished turn run again, and only an admission a
# paused one.
_RESTING = frozenset({State.WAITING_ENV, State.PAUSED})
# A member of an enum is found slowly through its class.
_ADMITTED, _RUNNING = State.ADMITTED, State.RUNNING
_WAITING_ENV, _SCORED = State.WAITING_ENV, State.SCORED


class Sampling:
    """Keeps slots full and collects what comes back, by uid alone.

    Args:
      settings: of admission and attempts.
      ledger: of the run; this class moves samples up to "scored".
      gap: between trainer and sampler; this class says how long groups take.
      accepts: whether a sample with an oldest token of this version may train.
      emit: takes effects.
      asks_scores: whether finished samples are to be scored, or that is done unasked.
      admissions_max: of one call of `admit`; None for any number.

    Attributes:
      groups: open groups by order.
      versions: how many of them were first admitted under each version.
      complete: orders of those whose samples are all scored and that wait for a
        verdict, in the order of completion.
      rejected: samples refused for tokens of a version that they must not have.
      is_cut_short: set by `admit` where it has left some to its next call.
    """

    def __init__(
        self,
        settings: Pipeline,
        ledger: Ledger,
        *,
        gap: Gap,
        accepts: Callable[[OpenGroup, int], bool],
        emit: Callable[[Effect], None],
        asks_scores: bool = True,
        admissions_max: int | None = None,
    ) -> None:
        self._settings = settings
        self._size = settings.samples_per_group
        self._ledger = ledger
        self._gap = gap
        self._accepts = accepts
        self._emit = emit
        self._asks_scores = asks_scores
        self._admissions_max = math.inf if admissions_max is None else admissions_max
        self.is_cut_short = False
        is_longest_first = settings.request_order == "longest_first"
        self._lengths = Lengths() if is_longest_first else None
        is_by_order = settings.admission == "frontier_adaptive"
        self._requests = Requests(self._lengths, is_by_order=is_by_order)
        self._admission = admission(settings, gap)
        self._slots = Slots()
        # The attempt and worker of each sample that waits to go on where it stopped.
        self._paused: dict[SampleId, tuple[int, str]] = {}
        self._deadlines = Deadlines(settings.lost_after_s)
        # By uid and draw, as in the ledger.
        self._by_id: dict[tuple[str, int], OpenGroup] = {}
        self.groups: dict[int, OpenGroup] = {}
        self.versions: collections.Counter[int] = collections.Counter()
        self.complete: list[int] = []
        self.rejected = 0

    def add(self, group: OpenGroup) -> None:
        """Let a group arrive that is queued in the ledger."""
        self.groups[group.order] = group
        self._by_id[group.id] = group
        self._requests.add(group.order, self._samples(group.id))

    def forget(self, group: OpenGroup) -> None:
        """The group is the learner's now."""
        del self.groups[group.order]
        del self._by_id[group.id]
        if group.version is not None:
            self.versions[group.version] -= 1
            if not self.versions[group.version]:
                del self.versions[group.version]

    def drop(self, order: int, reason: str) -> None:
        """End an open group and all that runs of it."""
        group = self.groups[order]
        for sample in self._samples(group.id):
            self._cancel(sample)
        self._requests.remove(order)
        if order in self.complete:
            self.complete.remove(order)
        self.forget(group)
        self._ledger.drop(group.id, reason)
        self._emit(records.DropGroup(group=group.id, order=order, reason=reason))

    def stop(self) -> None:
        """Cancel all that runs; the draws are queued again."""
        for sample in (*self._slots.running(), *self._paused):
            attempt = self._ledger.attempt(sample)
            self._cancel(sample)
            self._ledger.requeue(sample, attempt, is_failure=False)

    def admit(self, version: int) -> None:
        """Fill free slots with the requests that may enter."""
        ledger, slots, gap = self._ledger, self._slots, self._gap
        num = 0
        while worker := slots.roomiest():
            if num == self._admissions_max:
                self.is_cut_short = True
                return
            num += 1
            order = self._admission.choose(self._requests)
            if order is None:
                return
            sample = self._requests.pop(order)
            attempt = ledger.attempt(sample)
            is_resumed = bool(self._paused) and sample in self._paused
            if is_resumed:
                del self._paused[sample]
            ledger.move(sample, attempt, _RUNNING if is_resumed else _ADMITTED)
            slots.occupy(worker, sample, attempt)
            gap.entered()
            self._deadlines.set(sample, gap.now_s)
            group = self.groups[order]
            if group.version is None:
                group.version = version
                self.versions[version] += 1
            self._emit(
                records.AdmitSample(
                    id=sample,
                    attempt=attempt,
                    worker=worker,
                    version=version,
                    is_resumed=is_resumed,
                )
            )

    def pause(self) -> None:
        """Stop early all that runs; it goes on before anything new enters."""
        for sample in reversed(self._slots.running()):
            place = self._release(sample)
            assert place is not None
            worker, attempt = place
            # That it had started may not have been reported yet.
            self._ledger.move(sample, attempt, State.RUNNING)
            self._ledger.move(sample, attempt, State.PAUSED)
            self._paused[sample] = attempt, worker
            self._deadlines.clear(sample)
            self._requests.put_back(self._by_id[sample[:2]].order, sample)
            self._emit(records.PauseSample(id=sample, attempt=attempt, worker=worker))

    def give_up_overdue(self) -> None:
        """Queue again what has not been heard of for too long."""
        for sample in self._deadlines.due(self._gap.now_s):
            attempt = self._ledger.attempt(sample)
            self._cancel(sample, is_overdue=True)
            self._retry(sample, attempt)

    # What each event changes.

    def worker_joined(self, event: records.WorkerJoined) -> None:
        """Take its slots; one that joins twice restarted before its loss was seen."""
        if not self._slots.is_news(event.worker, event.incarnation, of_start=True):
            return
        self._lose(event.worker)
        self._slots.join(event.worker, event.slots)
        self._gap.resized(self._slots.total, self._slots.num_workers)

    def worker_lost(self, event: records.WorkerLost) -> None:
        """Queue again what ran on it."""
        if self._slots.is_news(event.worker, event.incarnation, of_start=False):
            self._lose(event.worker)

    def started(self, event: records.SampleStarted) -> None:
        """The sample decodes."""
        self._start(event.id, event.attempt)

    def finished(self, event: records.SampleFinished) -> None:
        """Free the slot and have the sample scored."""
        self._finish(event.id, event.attempt, event.num_tokens, event.version_min)

    def scored(self, event: records.SampleScored) -> None:
        """Keep the value; the last one completes the group."""
        self._score(event.id, event.attempt, event.value)

    def reported(self, event: records.SamplesReported) -> None:
        """All of that, of many samples."""
        for sample, attempt, _ in event.started:
            self._start(sample, attempt)
        for sample, attempt, num_tokens, version_min in event.finished:
            self._finish(sample, attempt, num_tokens, version_min)
        for sample, attempt, value in event.scored:
            self._score(sample, attempt, value)

    def failed(self, event: records.SampleFailed) -> None:
        """Queue the sample again."""
        self._retry(event.id, event.attempt)

    def _start(self, sample: SampleId, attempt: int) -> None:
        self._ledger.move(sample, attempt, _RUNNING, unless=_RESTING)

    def _finish(
        self, sample: SampleId, attempt: int, num_tokens: int, version_min: int
    ) -> None:
        if self._paused and self._paused.get(sample, (-1,))[0] == attempt:
            # It ended before it could be stopped.
            self._unpause(sample)
            self._ledger.move(sample, attempt, _RUNNING)
        if not self._ledger.move(sample, attempt, _WAITING_ENV):
            return
        if self._slots.release(sample, is_finished=True) is not None:
            self._gap.left(is_finished=True)
        group = self._by_id[sample[:2]]
        if not self._accepts(group, version_min):
            self.rejected += 1
            self._retry(sample, attempt)
            return
        group.tokens[sample.sample] = num_tokens
        group.versions[sample.sample] = version_min
        if len(group.tokens) == self._size:
            self._requests.remove(group.order)
            self._gap.sampled(group.tokens.values())
        if self._lengths is not None:
            self._lengths.add(sample.uid, num_tokens)
            self._requests.rank(group.order)
        self._deadlines.set(sample, self._gap.now_s)
        if self._asks_scores:
            self._emit(records.ScoreSample(id=sample, attempt=attempt))

    def _score(self, sample: SampleId, attempt: int, value: float | None) -> None:
        if not self._ledger.move(sample, attempt, _SCORED):
            return
        self._deadlines.clear(sample)
        group = self._by_id[sample[:2]]
        group.values[sample.sample] = value
        if len(group.values) == self._size:
            self.complete.append(group.order)

    def _samples(self, group: GroupId) -> list[SampleId]:
        return [SampleId(*group, i) for i in range(self._size)]

    def _lose(self, worker: str) -> None:
        lost = self._slots.lose(worker)
        self._gap.resized(self._slots.total, self._slots.num_workers)
        for _ in lost:
            self._gap.left(is_finished=False)
        for sample, attempt in lost:
            self._retry(sample, attempt)

    def _release(
        self, sample: SampleId, *, is_overdue: bool = False
    ) -> tuple[str, int] | None:
        """Free the slot of a sample that has not finished, if it has one."""
        place = self._slots.release(sample, is_overdue=is_overdue)
        if place is not None:
            self._gap.left(is_finished=False)
        return place

    def _cancel(self, sample: SampleId, *, is_overdue: bool = False) -> None:
        """Free what the sample holds, if it runs or is paused."""
        self._deadlines.clear(sample)
        place = self._release(sample, is_overdue=is_overdue)
        if sample in self._paused:
            attempt, worker = self._unpause(sample)
            place = worker, attempt
        if place is not None:
            worker, attempt = place
            self._emit(records.CancelSample(id=sample, attempt=attempt, worker=worker))

    def _unpause(self, sample: SampleId) -> tuple[int, str]:
        """It waits for a slot no more."""
        self._requests.withdraw(self._by_id[sample[:2]].order, sample)
        return self._paused.pop(sample)

    def _retry(self, sample: SampleId, attempt: int) -> None:
        if not self._ledger.requeue(sample, attempt):
            return
        self._release(sample)
        self._deadlines.clear(sample)
        if sample in self._paused:
            self._unpause(sample)
        group = self._by_id[sample[:2]]
        group.tokens.pop(sample.sample, None)
        group.versions.pop(sample.sample, None)
        if self._ledger.failures(sample) >= self._settings.attempts_max:
            self.drop(group.order, "attempts")
        else:
            self._requests.add(group.order, [sample])
