"""What must hold after every event, held against a model of its own.

The model knows only events and effects. What it compares with inside the machines are
sizes and counters after each event, and the whole state once in a while.
"""

import bisect
import collections
import heapq
from collections.abc import Callable
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import GroupId, SampleId
from jigsaw_jax.schedule.groups import OpenGroup
from jigsaw_jax.schedule.pipeline import Pipeline
from tests.simulation.vopr_plan import Episode

# Bytes a token is held with: id, logprob, version, entropy.
TOKEN_BYTES = 16
TOKENS_MAX = 51


class ViolationError(Exception):
    """An invariant that does not hold."""


def require(holds: bool, invariant: str, detail: Any = "") -> None:
    """Raise ViolationError unless it holds."""
    if not holds:
        raise ViolationError(f"{invariant}: {detail}")


class Open:
    """The model of a group that has neither been dropped nor committed."""

    __slots__ = (
        "finished",
        "group",
        "is_leased",
        "order",
        "running",
        "scored",
        "version",
    )

    def __init__(self, group: GroupId) -> None:
        self.group = group
        self.order = int(group.uid[1:])
        self.version: int | None = None
        self.running = 0
        self.is_leased = False
        # By sample: attempt, version of the oldest token, tokens.
        self.finished: dict[int, tuple[int, int, int]] = {}
        self.scored: dict[int, float | None] = {}


class Checks:
    """Follows one episode over all its processes.

    Attributes:
      finish: the effect that ended the process, or None.
      num_events: set by the world before each event.
      progress_at: events when a group last ended, trained, or a version was served.
    """

    def __init__(self, episode: Episode) -> None:
        self._run = episode
        self._settings = episode.settings
        self.num_events = self.progress_at = 0
        self._trained: list[tuple[GroupId, ...]] = []
        self._dropped: list[tuple[GroupId, str]] = []
        size = self._settings.groups_per_update
        if self._settings.mode == "async":
            self._open_max = (self._settings.staleness_max + 1) * size
        else:
            # The last update's groups may be leased still, while a refill replaces
            # what the round lost.
            refills = self._settings.refill_groups_max
            self._open_max = self._settings.groups_per_round + refills
        self._bytes_max = (
            self._open_max * self._settings.samples_per_group * TOKENS_MAX * TOKEN_BYTES
        )

    @property
    def place(self) -> tuple[int, int]:
        """How far the history goes, for a checkpoint."""
        return len(self._trained), len(self._dropped)

    def roll_back(self, place: Any) -> None:
        """The process died; what is behind `place` never happened, None is now."""
        if place is not None:
            num_trained, num_dropped = place
            del self._trained[num_trained:]
            del self._dropped[num_dropped:]
        self.progress_at = self.num_events

    def begin(self, pipeline: Pipeline) -> None:
        """A new process; all that ran is gone."""
        self._pipeline = pipeline
        self.finish: records.Finish | None = None
        self._open: dict[GroupId, Open] = {}
        self._redrawn: dict[int, GroupId] = {}
        self._unserved: list[int] = []
        self._by_order: dict[int, Open] = {}
        self._running: dict[SampleId, tuple[int, str]] = {}
        self._paused: dict[SampleId, int] = {}
        self._scoring: dict[SampleId, int] = {}
        self._attempts: dict[SampleId, int] = {}
        self._failures: collections.Counter[SampleId] = collections.Counter()
        # Deadlines, of which the newest of a sample counts.
        self._due: list[tuple[float, int, SampleId, str]] = []
        self._newest: dict[SampleId, int] = {}
        self._num_due = 0
        self._used: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._lives: dict[str, int] = {}
        self._pending: list[Open] = []
        self._to_score: set[tuple[SampleId, int]] = set()
        self._to_drop: set[GroupId] = set()
        self._gradients: list[Open] = []
        self._handed: tuple[GroupId, ...] = ()
        self._is_stepping = False
        self._num_bytes = 0
        self._durable = len(self._trained)
        self._num_committed = sum(map(len, self._trained))
        self._ended = {g for groups in self._trained for g in groups}
        self._ended |= {group for group, _ in self._dropped}
        self._version = 0
        self._sent = 0
        self._now_s = 0.0
        ledger: Any = pipeline._ledger
        open_group = ledger.open

        def opened(group: GroupId, order: int = -1) -> OpenGroup:
            found = open_group(group, order)
            self._opened(group)
            return found

        ledger.open = opened

    def restored(self) -> None:
        """The pipeline has taken its snapshot over."""
        pipeline = self._pipeline
        self._version = self._sent = pipeline.version
        require(pipeline.updates_done == len(self._trained), "resume", "updates")
        ledger: Any = pipeline._ledger
        for entry in ledger._open.values():
            for member in entry.members:
                self._failures[member.id] = member.failures
        want = {g: "committed" for groups in self._trained for g in groups}
        require(pipeline.ended() == want | dict(self._dropped), "ledger", "resume")

    def _opened(self, group: GroupId) -> None:
        require(group not in self._open, "ledger", f"{group} opened twice")
        require(group not in self._ended, "ledger", f"{group} opened after its end")
        opened = Open(group)
        if opened.order in self._by_order:
            # A new draw; the effect that drops the old one is still to come.
            require(opened.order not in self._redrawn, "ledger", f"two draws: {group}")
            self._redrawn[opened.order] = group
            return
        self._open[group] = self._by_order[opened.order] = opened
        bisect.insort(self._unserved, opened.order)

    # Events, before the pipeline has them.

    def see(self, event: Any) -> None:
        """Note what an event means, if it is not late or doubled."""
        self._now_s = event.now_s if event.now_s > self._now_s else self._now_s
        handle = _SEEN.get(type(event))
        if handle is not None and self.finish is None:
            handle(self, event)

    def _finished(self, event: records.SampleFinished) -> None:
        place = self._running.get(event.id)
        if place is not None and place[0] == event.attempt:
            self._vacate(event.id)
        elif self._paused.get(event.id) == event.attempt:
            del self._paused[event.id]
        else:
            return
        opened = self._of(event.id)
        opened.finished[event.id.sample] = (
            event.attempt,
            event.version_min,
            event.num_tokens,
        )
        self._num_bytes += event.num_tokens * TOKEN_BYTES
        self._scoring[event.id] = event.attempt
        self._to_score.add((event.id, event.attempt))
        self._expect_by(event.id, "scoring")
        if len(opened.finished) == self._settings.samples_per_group:
            self._serve(opened)

    def _failed(self, event: records.SampleFailed) -> None:
        place = self._running.get(event.id)
        if place is not None and place[0] == event.attempt:
            self._vacate(event.id)
        elif self._paused.get(event.id) == event.attempt:
            del self._paused[event.id]
        elif self._scoring.get(event.id) == event.attempt:
            self._unfinish(event.id)
        else:
            return
        self._failures[event.id] += 1

    def _scored(self, event: records.SampleScored) -> None:
        if self._scoring.get(event.id) != event.attempt:
            return
        del self._scoring[event.id]
        opened = self._of(event.id)
        opened.scored[event.id.sample] = event.value
        if len(opened.scored) < self._settings.samples_per_group:
            return
        if self._verdict(opened) is None:
            self._pending.append(opened)
        else:
            self._to_drop.add(opened.group)

    def _left(self, event: records.WorkerLost | records.WorkerJoined) -> None:
        life = self._lives.get(event.worker, 0)
        is_start = isinstance(event, records.WorkerJoined)
        if event.incarnation < life + is_start:
            return
        self._lives[event.worker] = event.incarnation
        for sample, (_, worker) in list(self._running.items()):
            if worker == event.worker:
                self._vacate(sample)
                self._failures[sample] += 1
        self._used[event.worker] = 0
        self._slots[event.worker] = getattr(event, "slots", 0)

    def _accumulated(self, event: records.GroupsAccumulated) -> None:
        if event.update == len(self._trained) and event.groups == self._handed:
            self._handed = ()

    def _stepped(self, event: records.UpdateStepped) -> None:
        if event.update < len(self._trained):
            return
        require(self._is_stepping, "learner", "stepped unasked")
        self._is_stepping = False
        self._trained.append(tuple(opened.group for opened in self._gradients))
        for opened in self._gradients:
            opened.is_leased = True
            self._free(opened)
            self._ended.add(opened.group)
        self._gradients = []
        self.progress_at = self.num_events

    def _served(self, event: records.VersionPublished) -> None:
        if event.version > self._version:
            self._version = event.version
            self.progress_at = self.num_events

    def _durable_at(self, event: records.CheckpointDurable) -> None:
        for groups in self._trained[self._durable : event.updates]:
            for group in groups:
                del self._open[group]
            self._num_committed += len(groups)
        self._durable = max(self._durable, event.updates)

    # Bookkeeping of the model.

    def _of(self, sample: SampleId) -> Open:
        return self._open[GroupId(sample.uid, sample.draw)]

    def _vacate(self, sample: SampleId) -> None:
        _, worker = self._running.pop(sample)
        self._used[worker] -= 1
        self._of(sample).running -= 1

    def _serve(self, opened: Open) -> None:
        place = bisect.bisect_left(self._unserved, opened.order)
        if self._unserved[place : place + 1] == [opened.order]:
            del self._unserved[place]

    def _unfinish(self, sample: SampleId) -> None:
        """The sample is drawn again, so its group is not serving-complete any more."""
        opened = self._of(sample)
        del self._scoring[sample]
        self._num_bytes -= opened.finished.pop(sample.sample)[2] * TOKEN_BYTES
        if len(opened.finished) == self._settings.samples_per_group - 1:
            bisect.insort(self._unserved, opened.order)

    def _free(self, opened: Open) -> None:
        self._num_bytes -= sum(t for _, _, t in opened.finished.values()) * TOKEN_BYTES
        del self._by_order[opened.order]

    def _verdict(self, opened: Open) -> str | None:
        valid = [v for v in opened.scored.values() if v is not None]
        if not valid:
            return "no_score"
        is_flat = self._settings.filter == "drop" and len(set(valid)) == 1
        return "zero_variance" if is_flat else None

    def _expect_by(self, sample: SampleId, stage: str) -> None:
        if self._settings.lost_after_s:
            due_s = self._now_s + self._settings.lost_after_s
            self._num_due += 1
            self._newest[sample] = self._num_due
            heapq.heappush(self._due, (due_s, self._num_due, sample, stage))

    def answered(self, now_s: float) -> None:
        """The pipeline has had the events, so what is overdue by now counts as lost."""
        while self._due and self._due[0][0] <= now_s:
            _, number, sample, stage = heapq.heappop(self._due)
            if self._newest[sample] != number:
                continue
            if stage == "scoring" and sample in self._scoring:
                self._unfinish(sample)
                self._failures[sample] += 1
            elif stage == "running" and sample in self._running:
                self._failures[sample] += 1

    # Effects.

    def effect(self, effect: Any) -> None:
        """Hold an effect against the invariants."""
        require(self.finish is None, "end", f"{effect} after the end")
        handle = _EFFECTS.get(type(effect))
        if handle is not None:
            handle(self, effect)

    def _admit(self, effect: records.AdmitSample) -> None:
        if self._settings.reduction == "arrival":
            require(not self._is_backed_up(), "bounds", "the queue is full")
        sample, attempt = effect.id, effect.attempt
        group = GroupId(sample.uid, sample.draw)
        require(group in self._open, "ledger", f"{group} is not open")
        opened = self._open[group]
        require(sample not in self._running, "ledger", f"{sample} runs already")
        require(sample not in self._scoring, "ledger", f"{sample} is being scored")
        if effect.is_resumed:
            require(self._paused.pop(sample, None) == attempt, "ledger", "not paused")
        else:
            newer = attempt > self._attempts.get(sample, -1)
            require(newer and sample not in self._paused, "ledger", f"{sample} again")
        self._attempts[sample] = attempt
        used = self._used[effect.worker] + 1
        require(used <= self._slots[effect.worker], "slots", effect.worker)
        self._used[effect.worker] = used
        self._running[sample] = attempt, effect.worker
        opened.running += 1
        require(
            effect.version == self._version == self._pipeline.version,
            "version",
            f"{sample} is sampled under {effect.version}, {self._version} is served",
        )
        if opened.version is None:
            opened.version = effect.version
        if self._settings.admission == "frontier_adaptive":
            self._check_limit(opened, is_resumed=effect.is_resumed)
        if self._settings.admission == "frontier_strict":
            place = bisect.bisect_left(self._unserved, opened.order)
            width = self._pipeline.frontier_groups
            require(place < width, "frontier", f"{sample}: {place} before it")
        if self._settings.early_stop:
            is_full = len(self._gradients) == self._settings.groups_per_update
            is_behind = self._version < len(self._trained)
            require(not is_full and not is_behind, "early stop", f"{sample} enters")
        self._expect_by(sample, "running")

    def _check_limit(self, opened: Open, *, is_resumed: bool) -> None:
        """No more than F groups' samples at a time, those of the first groups first."""
        pipeline: Any = self._pipeline
        width, limit = pipeline.frontier_groups, pipeline._gap.limit
        require(
            len(self._running) <= limit <= width * self._settings.samples_per_group,
            "frontier",
            f"{len(self._running)} run, {limit} may, of {width} groups",
        )
        if is_resumed or self._settings.request_order != "arrival":
            return
        for order in self._unserved:
            if order >= opened.order:
                return
            left = self._left_of(self._by_order[order])
            require(not left, "frontier", f"{opened.group} before {order}")

    def _left_of(self, opened: Open) -> int:
        """Requests of a group that wait, paused ones included."""
        num_begun = len(opened.finished) + opened.running
        return self._settings.samples_per_group - num_begun

    def _cancel(self, effect: records.CancelSample) -> None:
        if self._paused.pop(effect.id, None) is None:
            here = self._running.get(effect.id) == (effect.attempt, effect.worker)
            require(here, "ledger", f"{effect.id} is cancelled and does not run")
            self._vacate(effect.id)

    def _pause(self, effect: records.PauseSample) -> None:
        here = self._running.get(effect.id) == (effect.attempt, effect.worker)
        require(here, "ledger", f"{effect.id} is paused and does not run")
        self._vacate(effect.id)
        self._paused[effect.id] = effect.attempt

    def _score(self, effect: records.ScoreSample) -> None:
        key = effect.id, effect.attempt
        require(key in self._to_score, "ledger", f"{key} is scored unasked")
        self._to_score.discard(key)

    def _accumulate(self, effect: records.AccumulateGroups) -> None:
        require(not self._handed and not self._is_stepping, "learner", "it is busy")
        require(effect.update == len(self._trained), "learner", "update index")
        free = self._settings.groups_per_update - len(self._gradients)
        require(0 < len(effect.groups) <= free, "learner", "places of the update")
        taken = []
        for group, order in zip(effect.groups, effect.orders, strict=True):
            require(group in self._open, "ledger", f"{group} is not open")
            opened = self._open[group]
            require(opened in self._pending, "whole groups", f"{group} is not complete")
            require(opened.order == order, "ledger", f"{group} has order {order}")
            self._check_versions(opened, effect.update)
            taken.append(opened)
        self._check_fifo(taken)
        for opened in taken:
            self._pending.remove(opened)
        self._gradients += taken
        self._handed = effect.groups
        self.progress_at = self.num_events

    def _check_versions(self, opened: Open, update: int) -> None:
        versions = [version for _, version, _ in opened.finished.values()]
        if self._settings.mode == "async":
            age = update - min(versions)
            require(age <= self._settings.staleness_max, "staleness", opened.group)
        else:
            is_one = set(versions) == {self._version}
            require(is_one, "one version a round", f"{opened.group}: {versions}")

    def _check_fifo(self, taken: list[Open]) -> None:
        budget = self._settings.token_budget
        tokens = [sum(t for _, _, t in o.finished.values()) for o in taken]
        fits = not budget or len(taken) == 1 or sum(tokens) <= budget
        require(fits, "token budget", tokens)
        line = self._pending
        if self._settings.reduction == "ordered":
            require(len(taken) == 1, "order", "one group at a time")
            return
        if self._settings.mode != "async":
            require(line[: len(taken)] == taken, "FIFO", [o.group for o in taken])
            return
        places = [line.index(opened) for opened in taken]
        require(places == sorted(places), "FIFO", [o.group for o in taken])
        for opened in line[: places[0]]:
            self._check_overtaken(opened)

    def _check_overtaken(self, opened: Open) -> None:
        """Only a group that would make another late may be overtaken."""
        staleness_max = self._settings.staleness_max
        others = [
            o.version + staleness_max
            for o in self._by_order.values()
            if o.version is not None and o is not opened and o not in self._gradients
        ]
        assert opened.version is not None
        size = self._settings.groups_per_update
        update, places = len(self._trained), size - len(self._gradients) - 1
        could = all(
            sum(other <= last for other in others) <= places + (last - update) * size
            for last in range(update, opened.version + staleness_max)
        )
        require(not could, "FIFO", f"{opened.group} is overtaken for nothing")

    def _step(self, effect: records.StepUpdate) -> None:
        require(not self._handed and not self._is_stepping, "learner", "it is busy")
        groups = tuple(opened.group for opened in self._gradients)
        require(effect.groups == groups != (), "learner", "groups of the step")
        require(effect.update == len(self._trained), "learner", "update index")
        is_full = len(groups) == self._settings.groups_per_update
        is_last = len(self._by_order) == len(groups)
        require(is_full or is_last, "tail", f"a step over {len(groups)} groups")
        self._is_stepping = True

    def _publish(self, effect: records.PublishVersion) -> None:
        if self._settings.mode == "async":
            require(effect.version == len(self._trained), "version", effect.version)
        else:
            require(effect.version == self._version + 1, "version", effect.version)
            require(not self._by_order, "one version a round", "groups are open")
        self._sent = effect.version

    def _write(self, effect: records.WriteCheckpoint) -> None:
        require(effect.updates == len(self._trained), "checkpoint", effect.updates)

    def _drop(self, effect: records.DropGroup) -> None:
        require(effect.group in self._open, "ledger", f"{effect.group} is not open")
        opened = self._open.pop(effect.group)
        require(opened not in self._gradients, "ledger", "a trained group is dropped")
        require(not opened.is_leased, "ledger", "a trained group is dropped")
        self._check_reason(opened, effect.reason)
        self._to_drop.discard(effect.group)
        for index in range(self._settings.samples_per_group):
            sample = SampleId(*effect.group, index)
            require(sample not in self._running, "slots", f"{sample} runs on")
            require(sample not in self._paused, "slots", f"{sample} stays paused")
            self._scoring.pop(sample, None)
        if opened in self._pending:
            self._pending.remove(opened)
        self._free(opened)
        self._serve(opened)
        if opened.order in self._redrawn:
            self._opened(self._redrawn.pop(opened.order))
        self._ended.add(effect.group)
        self._dropped.append((effect.group, effect.reason))
        self.progress_at = self.num_events

    def _check_reason(self, opened: Open, reason: str) -> None:
        if reason == "run_end":
            is_done = len(self._trained) >= self._run.updates
            require(is_done, "ledger", f"{opened.group} is dropped before the end")
        elif reason == "attempts":
            samples = [
                SampleId(*opened.group, i)
                for i in range(self._settings.samples_per_group)
            ]
            worst = max(self._failures[sample] for sample in samples)
            require(worst >= self._settings.attempts_max, "ledger", "attempts")
        else:
            require(self._verdict(opened) == reason, "filter", opened.group)

    def _finish(self, effect: records.Finish) -> None:
        require(not self._running and not self._paused, "end", "samples run")
        require(not self._handed and not self._is_stepping, "end", "the learner works")
        require(self._durable >= len(self._trained), "end", "updates are not saved")
        self.finish = effect

    # After every event.

    def settled(self) -> None:
        """What must hold between two events; a few comparisons of numbers."""
        pipeline: Any = self._pipeline
        ledger, settings = pipeline._ledger, self._settings
        size = settings.samples_per_group
        require(not self._redrawn, "ledger", "two draws of a prompt are open")
        require(not self._to_score, "ledger", "a finished sample is not scored")
        num_open = len(self._open)
        require(len(ledger._open) == num_open, "ledger", "open groups")
        require(len(ledger._ended) * size == self._num_ended(size), "ledger", "ends")
        require(
            sum(ledger._counts.values()) == (num_open + len(ledger._ended)) * size,
            "ledger",
            "samples in all",
        )
        require(pipeline.updates_done == len(self._trained), "learner", "updates")
        require(pipeline.groups_committed == self._num_committed, "ledger", "commits")
        require(pipeline.version == self._version, "version", "served")
        require(pipeline.rejected == 0, "version", "a sample was refused")
        alive = len(self._by_order)
        num_held = len(pipeline._sampling.groups) + len(pipeline._assembly.groups)
        require(num_held == alive, "ledger", f"{alive} groups, {num_held} are held")
        require(alive <= self._open_max, "bounds", f"{alive} open groups")
        require(
            self._num_bytes <= self._bytes_max, "bounds", f"{self._num_bytes} bytes"
        )
        if self.finish is None and not pipeline._is_ending:
            self._check_busy(pipeline)

    def _num_ended(self, size: int) -> int:
        return (len(self._dropped) + self._num_committed) * size

    def _is_backed_up(self) -> bool:
        """Whether a busy learner has as much before it as may wait."""
        groups_max = self._settings.queue_groups_max or len(self._pending) + 1
        finished = (o.finished.values() for o in self._pending)
        num_tokens = sum(tokens for of in finished for _, _, tokens in of)
        tokens_max = self._settings.queue_tokens_max or num_tokens + 1
        is_long = len(self._pending) >= groups_max or num_tokens >= tokens_max
        return is_long and bool(self._handed or self._is_stepping)

    def _check_busy(self, pipeline: Any) -> None:
        """Neither slots nor the learner may starve while there is work for them."""
        settings = self._settings
        if settings.reduction == "arrival":
            require(not self._to_drop, "filter", "a judged group goes on")
            if settings.mode == "stream":
                is_idle = not self._handed and not self._is_stepping
                waits = is_idle and bool(self._pending)
                require(not waits, "starvation", "the learner waits before groups")
        num_waiting = len(pipeline._source._waiting)
        waiting_max = self._open_max + settings.groups_per_round
        require(num_waiting <= waiting_max, "bounds", f"{num_waiting} prompts wait")
        num_free = sum(self._slots.values()) - len(self._running)
        if num_free <= 0 or not pipeline._rounds.may_admit:
            return
        if pipeline._rounds.is_stopped_early(pipeline._now) or self._is_backed_up():
            return
        width = len(self._unserved)
        if settings.admission == "frontier_strict":
            width = pipeline.frontier_groups
        if settings.admission == "frontier_adaptive":
            width *= len(self._running) < pipeline._gap.limit
        for order in self._unserved[:width]:
            opened = self._by_order[order]
            waits = self._left_of(opened) > 0
            require(not waits, "starvation", f"{num_free} slots, {opened.group} waits")

    # The whole state, once in a while.

    def check_all(self) -> None:
        """Compare every sample with the model, and resume from here on paper."""
        pipeline: Any = self._pipeline
        settings = self._settings
        counted: collections.Counter[str] = collections.Counter()
        for entry in pipeline._ledger._open.values():
            for sample in entry.samples:
                state = pipeline._ledger.state(sample).value
                counted[state] += 1
                self._check_sample(sample, state)
        counts = pipeline.ledger_counts()
        for state in set(counts) - {"committed", "dropped"}:
            require(counts[state] == counted[state], "ledger", f"{state} is miscounted")
        ended = {g: "committed" for u in self._trained[: self._durable] for g in u}
        require(pipeline.ended() == ended | dict(self._dropped), "ledger", "ends")
        self._check_queues(pipeline)
        waiting = pipeline._sampling._requests._waiting
        lined_up = [s for line in waiting.values() for _, some in line for s in some]
        require(len(set(lined_up)) == len(lined_up), "ledger", "a request waits twice")
        if self.finish is None and not pipeline._is_ending:
            num = counts["queued"] + counts["paused"]
            require(len(lined_up) == num, "ledger", f"{num} wait, {len(lined_up)} do")
        again = Pipeline(
            settings,
            updates=self._run.updates,
            checkpoint_every=self._run.checkpoint_every,
        )
        again.restore(pipeline.snapshot())
        require(again.outstanding() == pipeline.outstanding(), "resume", "outstanding")

    def _check_queues(self, pipeline: Any) -> None:
        """What is kept of the past in the queues stays small."""
        samples = self._open_max * self._settings.samples_per_group
        sampling = pipeline._sampling
        for queue in (
            sampling._requests._ranked,
            sampling._slots._roomy,
            pipeline._judging._in_order,
        ):
            require(len(queue) <= 4 * samples + 100, "bounds", f"{len(queue)} entries")

    def _check_sample(self, sample: SampleId, state: str) -> None:
        opened = self._of(sample)
        if state in ("admitted", "running"):
            holds = sample in self._running
        elif state == "waiting_env":
            holds = sample in self._scoring
        elif state == "paused":
            holds = sample in self._paused
        elif state == "scored":
            holds = sample.sample in opened.scored
        elif state == "ready":
            holds = opened in self._pending
        elif state == "leased":
            holds = opened.is_leased or opened in self._gradients
        else:
            holds = sample.sample not in opened.finished
        require(holds, "ledger", f"{sample} is {state}")

    def check_end(self, *, was_stopped: bool) -> None:
        """The process has finished: whatever was opened has ended, once."""
        self.check_all()
        pipeline: Any = self._pipeline
        trained = [group for groups in self._trained for group in groups]
        ended = trained + [group for group, _ in self._dropped]
        require(len(set(ended)) == len(ended), "ledger", "a group ended twice")
        assert self.finish is not None
        if self.finish.error is None and not was_stopped:
            require(not self._open, "ledger", f"{len(self._open)} groups never ended")
            is_done = len(self._trained) == self._run.updates
            is_out = pipeline.next_prompt_index == self._run.prompts
            require(is_done or is_out, "end", "work is left")
        draws = collections.Counter(group.uid for group in ended)
        for uid, num in draws.items():
            require(GroupId(uid, num - 1) in self._ended, "ledger", f"draws of {uid}")


_SEEN: dict[type[records.Event], Callable[[Checks, Any], None]] = {
    records.SampleFinished: Checks._finished,
    records.SampleFailed: Checks._failed,
    records.SampleScored: Checks._scored,
    records.WorkerLost: Checks._left,
    records.WorkerJoined: Checks._left,
    records.GroupsAccumulated: Checks._accumulated,
    records.UpdateStepped: Checks._stepped,
    records.VersionPublished: Checks._served,
    records.CheckpointDurable: Checks._durable_at,
}
_EFFECTS: dict[type, Callable[[Checks, Any], None]] = {
    records.AdmitSample: Checks._admit,
    records.CancelSample: Checks._cancel,
    records.PauseSample: Checks._pause,
    records.ScoreSample: Checks._score,
    records.AccumulateGroups: Checks._accumulate,
    records.StepUpdate: Checks._step,
    records.PublishVersion: Checks._publish,
    records.WriteCheckpoint: Checks._write,
    records.DropGroup: Checks._drop,
    records.Finish: Checks._finish,
}
