"""The sampler's side: open groups, from their opening to their hand-off or drop."""

import collections
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from jigsaw_jax import records
from jigsaw_jax.records import AdmitSample, Effect, SampleId
from jigsaw_jax.schedule.admission import admission
from jigsaw_jax.schedule.deadlines import Deadlines
from jigsaw_jax.schedule.gap import Gap
from jigsaw_jax.schedule.groups import (
    Finished,
    Member,
    OpenGroup,
    Scored,
    Started,
    when_sent,
)
from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.schedule.lengths import Lengths
from jigsaw_jax.schedule.requests import Requests
from jigsaw_jax.schedule.slots import Slots, Worker
from jigsaw_jax.schedule.states import State
from jigsaw_jax.settings import Pipeline

# Only an environment's answer lets a finished turn run again, and only an admission a
# paused one.
_RESTING = frozenset({State.WAITING_ENV, State.PAUSED})
# A member of an enum is found slowly through its class.
_RUNNING = State.RUNNING
_WAITING_ENV, _SCORED = State.WAITING_ENV, State.SCORED

# A third of what a call of the class takes.
_admit: Callable[[tuple[SampleId, int, str, int, bool]], AdmitSample]
_admit = functools.partial(tuple.__new__, AdmitSample)  # pyright: ignore[reportUnknownMemberType]


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
        self._admissions_max = admissions_max or sys.maxsize
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
        # What was sent out at this time.
        self._numbered_s, self._number = -math.inf, 0
        self.groups: dict[int, OpenGroup] = {}
        self.versions: collections.Counter[int] = collections.Counter()
        self.complete: list[int] = []
        self.rejected = 0

    def add(self, group: OpenGroup) -> None:
        """Let a group arrive that is queued in the ledger."""
        self.groups[group.order] = group
        self._requests.add(group.order, group.samples)

    def forget(self, group: OpenGroup) -> None:
        """The group is the learner's now."""
        del self.groups[group.order]
        if group.version is not None:
            self.versions[group.version] -= 1
            if not self.versions[group.version]:
                del self.versions[group.version]

    def drop(self, order: int, reason: str) -> None:
        """End an open group and all that runs of it."""
        group = self.groups[order]
        for member in group.members:
            self._cancel(group, member)
        self._requests.remove(order)
        if order in self.complete:
            self.complete.remove(order)
        self.forget(group)
        self._ledger.drop(group.id, reason)
        self._emit(records.DropGroup(group=group.id, order=order, reason=reason))

    def stop(self) -> None:
        """Cancel all that runs; the draws are queued again."""
        running = [member.id for _, member in self._running()]
        for sample in (*running, *self._paused):
            group, member = self._ledger.find(sample)
            self._cancel(group, member)
            self._ledger.requeue(sample, member.attempt, is_failure=False)

    def admit(self, version: int) -> None:
        """Fill free slots with the requests that may enter."""
        slots, rule = self._slots, self._admission
        admitted: list[AdmitSample] = []
        while slots.free:
            left = self._admissions_max - len(admitted)
            if not left:
                self.is_cut_short = True
                break
            order = rule.choose(self._requests)
            if order is None:
                break
            samples = self._requests.take(order, min(left, slots.free, rule.room))
            self._enter(self.groups[order], samples, version, admitted)
        if admitted:
            self._deadlines.sent(self._gap.now_s)
            self._emit(records.AdmitSamples(samples=admitted))

    def _enter(
        self,
        group: OpenGroup,
        samples: Sequence[SampleId],
        version: int,
        admitted: list[AdmitSample],
    ) -> None:
        """Requests of one rank enter."""
        self._gap.entered(len(samples))
        if group.version is None:
            group.version = version
            self.versions[version] += 1
        members = [group.members[sample[2]] for sample in samples]
        # Each that is paused has a rank of its own.
        is_resumed = bool(self._paused) and samples[0] in self._paused
        if is_resumed:
            attempt, _ = self._paused.pop(samples[0])
            self._ledger.move(samples[0], attempt, _RUNNING)
        else:
            self._ledger.admit(members)
        now_s, number = self._gap.now_s, self._next_number(len(members))
        workers = self._slots.occupy(len(members))
        for member, member.worker in zip(members, workers, strict=True):
            member.since_s, member.number = now_s, number
            number += 1
            told = member.id, member.attempt, member.worker.name, version, is_resumed
            admitted.append(_admit(told))

    def _next_number(self, num: int) -> int:
        """The first of so many numbers for what is sent out now, in order.

        They begin anew with every moment: small ones cost no memory.
        """
        if self._gap.now_s != self._numbered_s:
            self._numbered_s, self._number = self._gap.now_s, 0
        self._number += num
        return self._number - num

    def pause(self) -> None:
        """Stop early all that runs; it goes on before anything new enters."""
        for group, member in reversed(self._running()):
            sample, attempt = member.id, member.attempt
            worker = self._release(member)
            assert worker is not None
            # That it had started may not have been reported yet.
            self._ledger.move(sample, attempt, State.RUNNING)
            self._ledger.move(sample, attempt, State.PAUSED)
            self._paused[sample] = attempt, worker
            self._requests.put_back(group.order, sample)
            self._emit(records.PauseSample(id=sample, attempt=attempt, worker=worker))

    def give_up_overdue(self) -> None:
        """Queue again what has not been heard of for too long."""
        due = self._deadlines.due(self.groups.values(), self._gap.now_s)
        for group, member in due:
            # It may have gone with another of its group.
            if member.since_s is not None:
                attempt = member.attempt
                self._cancel(group, member, is_overdue=True)
                self._retry(member.id, attempt)

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
        self._start(((event.id, event.attempt, event.now_s),))

    def finished(self, event: records.SampleFinished) -> None:
        """Free the slot and have the sample scored."""
        self._finish(((event.id, event.attempt, event.num_tokens, event.version_min),))

    def scored(self, event: records.SampleScored) -> None:
        """Keep the value; the last one completes the group."""
        self._score(((event.id, event.attempt, event.value),))

    def reported(self, event: records.SamplesReported) -> None:
        """All of that, of many samples."""
        self._start(event.started)
        self._finish(event.finished)
        self._score(event.scored)

    def failed(self, event: records.SampleFailed) -> None:
        """Queue the sample again."""
        self._retry(event.id, event.attempt)

    def _start(self, rows: Iterable[Started]) -> None:
        for _ in self._ledger.moves(rows, _RUNNING, unless=_RESTING):
            pass

    def _finish(self, rows: Iterable[Finished]) -> None:
        gap, asks_scores = self._gap, self._asks_scores
        now_s = gap.now_s
        number = self._next_number(0)
        freed: list[Worker] = []
        rows = self._unpaused(rows) if self._paused else rows
        for group, member, row in self._ledger.moves(rows, _WAITING_ENV):
            sample, attempt, num_tokens, version_min = row
            if member.worker is not None:
                freed.append(member.worker)
                member.worker = None
            if not self._accepts(group, version_min):
                self.rejected += 1
                self._retry(sample, attempt)
                continue
            member.tokens, member.version = num_tokens, version_min
            group.num_tokens += num_tokens
            member.since_s, member.number = now_s, number
            number += 1
            group.num_finished += 1
            if group.num_finished == self._size:
                self._served(group)
            if self._lengths is not None:
                self._lengths.add(sample.uid, num_tokens)
                self._requests.rank(group.order)
            if asks_scores:
                self._emit(records.ScoreSample(id=sample, attempt=attempt))
        self._number = number
        self._deadlines.sent(now_s)
        if freed:
            self._slots.finished(freed)
            gap.left(len(freed), is_finished=True)

    def _served(self, group: OpenGroup) -> None:
        """All of it has finished."""
        self._requests.remove(group.order)
        self._gap.sampled([member.tokens for member in group.members])

    def _unpaused(self, rows: Iterable[Finished]) -> Iterator[Finished]:
        """The same rows; what ended before it could be stopped goes on before."""
        for row in rows:
            sample, attempt = row[:2]
            if self._paused.get(sample, (-1,))[0] == attempt:
                self._unpause(self._ledger.find(sample)[0], sample)
                self._ledger.move(sample, attempt, _RUNNING)
            yield row

    def _score(self, rows: Iterable[Scored]) -> None:
        for group, member, (_, _, value) in self._ledger.moves(rows, _SCORED):
            member.since_s, member.value = None, value
            group.num_scored += 1
            if group.num_scored == self._size:
                self.complete.append(group.order)

    def _running(self, worker: Worker | None = None) -> list[tuple[OpenGroup, Member]]:
        """What has a slot, of one worker or of any, in the order of admission."""
        running = [
            (group, member)
            for group in self.groups.values()
            for member in group.members
            if member.worker is not None and worker in (None, member.worker)
        ]
        return sorted(running, key=when_sent)

    def _lose(self, worker: str) -> None:
        lost = self._slots.lose(worker)
        self._gap.resized(self._slots.total, self._slots.num_workers)
        if lost is None:
            return
        running = self._running(lost)
        for _, member in running:
            member.worker = None
        self._gap.left(len(running), is_finished=False)
        for sample, attempt in [(m.id, m.attempt) for _, m in running]:
            self._retry(sample, attempt)

    def _release(self, member: Member, *, is_overdue: bool = False) -> str | None:
        """Wait for it no more; the worker whose slot it had, if it had one."""
        worker, member.worker, member.since_s = member.worker, None, None
        if worker is None:
            return None
        self._slots.release(worker, is_overdue=is_overdue)
        self._gap.left(is_finished=False)
        return worker.name

    def _cancel(
        self, group: OpenGroup, member: Member, *, is_overdue: bool = False
    ) -> None:
        """Free what the sample holds, if it runs or is paused."""
        sample, attempt = member.id, member.attempt
        worker = self._release(member, is_overdue=is_overdue)
        if sample in self._paused:
            attempt, worker = self._unpause(group, sample)
        if worker is not None:
            self._emit(records.CancelSample(id=sample, attempt=attempt, worker=worker))

    def _unpause(self, group: OpenGroup, sample: SampleId) -> tuple[int, str]:
        """It waits for a slot no more."""
        self._requests.withdraw(group.order, sample)
        return self._paused.pop(sample)

    def _retry(self, sample: SampleId, attempt: int) -> None:
        if not self._ledger.requeue(sample, attempt):
            return
        group, member = self._ledger.find(sample)
        self._release(member)
        if sample in self._paused:
            self._unpause(group, sample)
        if member.version >= 0:
            group.num_tokens -= member.tokens
            member.tokens, member.version = 0, -1
            group.num_finished -= 1
        if member.failures >= self._settings.attempts_max:
            self.drop(group.order, "attempts")
        else:
            self._requests.add(group.order, [sample])
