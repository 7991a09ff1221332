"""The machine that the shells drive: events in, effects out.

    PromptsOffered > Source > [open] > Requests > AdmitSample > Slots > ScoreSample
      > verdict > pending FIFO > AccumulateGroups > StepUpdate > PublishVersion

`Ledger` says where each sample is; `Sampling` keeps the slots full; `Rounds` or
`Pacing` say when groups may open and train, and when a version is published. Every
call is followed by one pass over what may now happen, in the order of `_advance`.
docs/pipeline.md states the rules.
"""

from collections.abc import Callable
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import Effect, Event, GroupId
from jigsaw_jax.schedule.assembly import Assembly, fifo_prefix
from jigsaw_jax.schedule.gap import gap_of
from jigsaw_jax.schedule.groups import OpenGroup
from jigsaw_jax.schedule.judging import Judging
from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.schedule.pacing import Pacing
from jigsaw_jax.schedule.rounds import Rounds
from jigsaw_jax.schedule.sampling import Sampling
from jigsaw_jax.schedule.source import Source
from jigsaw_jax.schedule.standing import Standing
from jigsaw_jax.schedule.states import State
from jigsaw_jax.settings import Pipeline as Settings


class Pipeline:
    """One RL run's schedule.

    Effects are to be carried out in order, and before the next event is applied;
    `RequestPrompts` is always the last, so a shell may answer it at once.

    Args:
      settings: of rounds and admission.
      updates: optimizer steps of the run; a round with nothing to train has none.
      checkpoint_every: updates between checkpoints.
      asks_scores: whether `ScoreSample` is sent; not where samples are scored unasked.
      admissions_max: of one call; None for all that may enter.

    Attributes:
      patience_s: how long to wait for an event before `TimePassed`; None for ever.
      staleness: mean and maximum age, in versions, of the oldest token of the groups
        of the last update.
      is_finished: whether `Finish` was sent.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        updates: int,
        checkpoint_every: int,
        asks_scores: bool = True,
        admissions_max: int | None = None,
    ) -> None:
        self._settings = settings
        self._updates = updates
        self._checkpoint_every = checkpoint_every
        self._ledger = Ledger(settings.samples_per_group)
        self._source = Source()
        self._assembly = Assembly()
        rules = Pacing if settings.mode == "async" else Rounds
        self._rounds: Rounds | Pacing = rules(settings, updates=updates)
        self._gap = gap_of(settings)
        self._effects: list[Effect] = []
        self._sampling = Sampling(
            settings,
            self._ledger,
            gap=self._gap,
            accepts=self._rounds.accepts,
            emit=self._effects.append,
            asks_scores=asks_scores,
            admissions_max=admissions_max,
        )
        sampling = self._sampling
        self._now = Standing(
            self._source, sampling.groups, sampling.versions, self._assembly
        )
        self._judging = Judging(
            settings, self._now, ledger=self._ledger, sampling=sampling, updates=updates
        )
        self._written = self._durable = -1
        self._is_started = self._is_stopping = self._is_ending = False
        self._error: str | None = None
        self.staleness = (0.0, 0)
        self.patience_s: float | None = None
        self._wait_s = settings.lost_after_s / 4 or None
        self.is_finished = False
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            records.WorkerJoined: self._sampling.worker_joined,
            records.WorkerLost: self._sampling.worker_lost,
            records.PromptsOffered: self._source.offer,
            records.SampleStarted: self._sampling.started,
            records.SampleFinished: self._sampling.finished,
            records.SampleFailed: self._sampling.failed,
            records.SampleScored: self._sampling.scored,
            records.SamplesReported: self._sampling.reported,
            records.GroupsAccumulated: self._groups_accumulated,
            records.UpdateStepped: self._update_stepped,
            records.VersionPublished: lambda e: self._rounds.published(e.version),
            records.CheckpointDurable: self._checkpoint_durable,
            records.StopRequested: self._stop_requested,
            records.StepTimed: lambda e: self._gap.timed(e.sequences, e.step_s),
            records.TimePassed: lambda _: None,
        }

    def start(self, now_s: float = 0.0) -> list[Effect]:
        """Begin, or go on after `restore`; the first effects."""
        assert not self._is_started
        self._gap.see(now_s)
        self._is_started = True
        return self._advance()

    def apply(self, *events: Event) -> list[Effect]:
        """Take events in and return what is to be done, in order.

        What came at the same time is best given at once: the groups that it completes
        then go to the learner in one hand-off.

        Args:
          *events: late and doubled reports are allowed and change nothing.

        Returns:
          Effects, of which `RequestPrompts` is the last.

        Raises:
          LedgerError: a report of something that cannot have happened.
          ValueError: an event with a value that it must not have.
        """
        for event in events:
            if event.now_s > self._gap.now_s:
                self._gap.see(event.now_s)
            self._handlers[type(event)](event)
        self._sampling.give_up_overdue()
        return self._advance()

    # What the shell reads.

    @property
    def version(self) -> int:
        """What the samplers serve; of the current round in "sync" and "stream"."""
        return self._rounds.version

    @property
    def version_updates(self) -> int:
        """Updates that the weights of `version` hold."""
        return self._rounds.version_updates

    @property
    def frontier_groups(self) -> int:
        """F as it is now; fixed unless admission is "frontier_adaptive"."""
        if self._settings.admission == "frontier_adaptive":
            return self._gap.width
        return self._settings.frontier_groups

    @property
    def round(self) -> int:
        """Index of the round under way, so the number of those that are over."""
        return self._rounds.round

    @property
    def rounds_trained(self) -> int:
        """Rounds that have trained or were empty, the one under way included."""
        return self._rounds.rounds_trained(self._now)

    @property
    def updates_done(self) -> int:
        """Optimizer steps taken."""
        return self._assembly.updates_done

    @property
    def next_prompt_index(self) -> int:
        """Position in the data of the next prompt to offer."""
        return self._source.position

    @property
    def groups_committed(self) -> int:
        """Groups whose update is in a durable checkpoint."""
        committed = self._ledger.count(State.COMMITTED)
        return committed // self._settings.samples_per_group

    @property
    def rejected(self) -> int:
        """Samples refused for tokens of a version that they must not have."""
        return self._sampling.rejected

    def ledger_counts(self) -> dict[str, int]:
        """Samples in each state of the ledger."""
        return self._ledger.counts()

    def dropped_reasons(self) -> dict[str, int]:
        """Dropped groups by reason."""
        return self._ledger.dropped_reasons()

    def ended(self) -> dict[GroupId, str]:
        """Every ended group with "committed" or the reason of its drop."""
        return dict(self._ledger.ended())

    def outstanding(self) -> tuple[tuple[str, int], ...]:
        """The (uid, position) of each prompt that was offered and is still needed."""
        under_way = [*self._assembly.groups, *self._sampling.groups.values()]
        pairs = sorted((group.order, group.id.uid) for group in under_way)
        return tuple((uid, order) for order, uid in pairs) + self._source.waiting()

    def snapshot(self) -> dict[str, Any]:
        """What `restore` needs, as JSON values."""
        under_way = [*self._assembly.groups, *self._sampling.groups.values()]
        return {
            "mode": self._settings.mode,
            "updates_done": self.updates_done,
            "ledger": self._ledger.snapshot(),
            "source": self._source.snapshot(),
            "rounds": self._rounds.snapshot(),
            "groups": sorted([g.order, g.id.uid, g.id.draw] for g in under_way),
            "barren": self._now.barren,
            "gap": self._gap.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over a snapshot, before `start`.

        The learner must hold `updates_done` updates and the samplers the weights of
        `version`; where those hold as many updates, they are the learner's.

        Args:
          snapshot: what `snapshot` returned, possibly through JSON.

        Raises:
          ValueError: a snapshot of another mode or group size.
        """
        assert not self._is_started
        if snapshot["mode"] != self._settings.mode:
            raise ValueError(
                f"Pipeline.mode must be that of the snapshot, {snapshot['mode']!r}, "
                f"got {self._settings.mode!r}; start a new run directory to change it"
            )
        updates_done = snapshot["updates_done"]
        self._ledger.restore(snapshot["ledger"], updates=updates_done)
        self._source.restore(snapshot["source"])
        self._rounds.restore(snapshot["rounds"], updates_done=updates_done)
        self._assembly.updates_done = updates_done
        limit = self._settings.empty_rounds_max * self._settings.groups_per_update
        self._now.barren = snapshot["barren"] % limit
        if "gap" in snapshot:
            self._gap.restore(snapshot["gap"])
        self._written = self._durable = updates_done
        for order, uid, draw in snapshot["groups"]:
            group = self._ledger.opened(GroupId(uid, draw))
            if group is not None:
                group.order = order
                self._add(group)

    # What each event changes.

    def _groups_accumulated(self, event: records.GroupsAccumulated) -> None:
        if self._assembly.accumulated(event):
            self._gap.accumulated(len(event.groups))

    def _update_stepped(self, event: records.UpdateStepped) -> None:
        update = self.updates_done
        trained = self._assembly.stepped(event)
        if trained:
            self._rounds.stepped(len(trained))
            self._gap.stepped(len(trained))
            ages = [self._rounds.staleness(update, g.version_min) for g in trained]
            self.staleness = sum(ages) / len(ages), max(ages)

    def _checkpoint_durable(self, event: records.CheckpointDurable) -> None:
        self._durable = max(self._durable, event.updates)
        self._written = max(self._written, event.updates)
        self._ledger.commit(event.updates)

    def _stop_requested(self, event: records.StopRequested) -> None:
        del event
        self._is_stopping = True

    # What may happen now.

    def _advance(self) -> list[Effect]:
        self._sampling.is_cut_short = False
        if self._is_at_work():
            self._write_when_due()
            self._judging.judge()
            self._feed()
        if self._is_at_work():
            self._open()
            if self._rounds.is_stopped_early(self._now):
                self._sampling.pause()
            elif self._rounds.may_admit and not self._now.is_backed_up(self._settings):
                self._sampling.admit(self.version)
            self._request()
        is_unsaved = self._durable < self.updates_done
        if self._is_ending and not self.is_finished and not is_unsaved:
            self.is_finished = True
            self._effects.append(records.Finish(error=self._error))
        self.patience_s = 0.0 if self._sampling.is_cut_short else self._wait_s
        effects, self._effects[:] = self._effects[:], []
        return effects

    def _is_at_work(self) -> bool:
        if self._is_started and not self._is_ending:
            self._end_when_due()
        return self._is_started and not self._is_ending

    def _end_when_due(self) -> None:
        if self._assembly.is_busy:
            return
        now = self._now
        empty_max = self._settings.empty_rounds_max
        is_done = self.updates_done >= self._updates
        is_out = now.source.is_exhausted and not now.groups and not now.filled
        if is_done or is_out:
            self._end(drops_rest=True)
        elif self._rounds.empty_rounds(now) >= empty_max:
            self._error = (
                f"nothing could train in {empty_max} rounds in a row: in every group "
                "the rewards are all equal or missing. Check the reward, take easier "
                "or harder problems, or raise Pipeline.samples_per_group, "
                "Pipeline.redraws_max or Pipeline.empty_rounds_max"
            )
            self._end(drops_rest=False)
        elif self._is_stopping and not now.filled:
            self._end(drops_rest=False)

    def _end(self, *, drops_rest: bool) -> None:
        """Stop all work; groups that are left end, or wait for a later run."""
        self._is_ending = True
        if drops_rest:
            self._now.pending.clear()
            for order in list(self._sampling.groups):
                self._sampling.drop(order, "run_end")
        self._sampling.stop()
        if self._written < self.updates_done:
            self._write(is_final=True)

    def _write_when_due(self) -> None:
        done = self._assembly.updates_done
        if done > max(self._written, 0) and done % self._checkpoint_every == 0:
            self._write(is_final=False)

    def _write(self, *, is_final: bool) -> None:
        done = self._written = self.updates_done
        self._effects.append(records.WriteCheckpoint(updates=done, is_final=is_final))

    def _feed(self) -> None:
        """Give the idle learner its next command, and publish between updates."""
        if self._assembly.is_busy:
            return
        now = self._now
        size = self._settings.groups_per_update
        if now.filled and (now.filled == size or self._rounds.is_tail(now)):
            self._effects.append(self._assembly.step())
            self._gap.began()
            return
        if not now.filled:
            version = self._rounds.close(now)
            if version is not None:
                self._effects.append(records.PublishVersion(version=version))
        is_ordered = self._settings.reduction == "ordered"
        taken = fifo_prefix(
            self._rounds.takeable(now),
            places=1 if is_ordered else size - now.filled,
            token_budget=self._settings.token_budget,
        )
        for group in taken:
            self._now.pending.remove(group)
            self._sampling.forget(group)
            self._ledger.lease(group.id, self.updates_done)
        if taken:
            self._now.barren = 0
            self._effects.append(self._assembly.hand(taken))
            self._gap.began()

    def _open(self) -> None:
        num = self._rounds.openings(self._now)
        if not num or (self._rounds.opens_whole and not self._source.can_give(num)):
            return
        opening = self._source.take(num)
        for uid, position in opening:
            self._add(self._ledger.open(GroupId(uid, 0), position))
        if opening:
            self._rounds.opened(len(opening))

    def _add(self, group: OpenGroup) -> None:
        self._sampling.add(group)
        self._judging.opened(group.order)

    def _request(self) -> None:
        if request := self._source.top_up(self._rounds.wanted(self._now)):
            self._effects.append(request)
