"""The record that says where every (uid, draw, sample) is, and by which attempt.

One sample's life (group-wide states in capitals):

    queued -> admitted -> running -> waiting_env -> scored -> READY -> LEASED
      ^          |           |  ^        |  |                  |          |
      |          |           v  |        |  |                  |          v
      |          |          paused <-----+  |                  |      COMMITTED
      +----------+-----------+--------------+                  |
       attempt + 1: failed, worker lost, cancelled             v
                            from any state but the last two: DROPPED(reason)

`waiting_env` is out of the engine's hands: the environment or the reward has it.
`scored` waits for its group; `ready` waits for the learner; `leased` has been handed
to an update and is `committed` when a durable checkpoint holds that update. After a
crash whatever had not ended is queued again as the next attempt of the same draw, which
gives the same tokens. So every (uid, draw, sample) ends exactly once.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jigsaw_jax.records import GroupId, SampleId
from jigsaw_jax.schedule.ended import Ended, listed
from jigsaw_jax.schedule.groups import Member, OpenGroup, RowT
from jigsaw_jax.schedule.states import (
    LEGAL,
    LEGAL_ALONE,
    STAGE,
    USUAL,
    LedgerError,
    State,
)

_COMMITTED = State.COMMITTED.value
# A member of an enum is found slowly through its class.
_QUEUED, _ADMITTED = State.QUEUED, State.ADMITTED


class Ledger:
    """Every sample of a run, each in one state; groups end as a whole."""

    def __init__(self, samples_per_group: int) -> None:
        self._samples_per_group = samples_per_group
        # By uid and draw: a part of a sample's identity equals its group's, and is
        # made in a third of the time.
        self._open: dict[tuple[str, int], OpenGroup] = {}
        self._leases: dict[int, list[GroupId]] = {}
        # How each ended group ended: "committed", or the reason of its drop.
        self._ended = Ended()
        self._counts = dict.fromkeys(State, 0)
        self._reasons: dict[str, int] = {}

    def open(self, group: GroupId, order: int = -1) -> OpenGroup:
        """Queue the samples of a new group.

        Args:
          group: a (uid, draw) that the ledger has never seen.
          order: its submission index.

        Returns:
          The group, of which the ledger keeps states, attempts and lease.

        Raises:
          LedgerError: where it has.
        """
        if group in self._open or group in self._ended:
            raise LedgerError(f"{group} must be new, it was opened before")
        opened = OpenGroup(group, order, self._samples_per_group)
        self._open[group] = opened
        self._counts[State.QUEUED] += self._samples_per_group
        return opened

    def find(self, sample: SampleId) -> tuple[OpenGroup, Member]:
        """A sample, whose group has not ended, and the group."""
        group = self._open[sample[:2]]
        return group, group.members[sample.sample]

    def opened(self, group: GroupId) -> OpenGroup | None:
        """A group, None where it has ended or is unknown."""
        return self._open.get(group)

    def admit(self, members: Sequence[Member]) -> None:
        """Let samples that wait be admitted.

        Args:
          members: of open groups.

        Raises:
          LedgerError: where one is not queued.
        """
        for member in members:
            if member.state is not _QUEUED:
                raise _illegal(member.id, member.state, _ADMITTED)
            member.state = _ADMITTED
        self._counts[_QUEUED] -= len(members)
        self._counts[_ADMITTED] += len(members)

    def moves(
        self,
        rows: Iterable[RowT],
        to: State,
        *,
        unless: frozenset[State] = frozenset(),
    ) -> Iterator[tuple[OpenGroup, Member, RowT]]:
        """Move many samples as `move` does, each when it is asked for.

        Args:
          rows: that begin with a sample and the attempt that they speak of.
          to: as of `move`, as is the next.
          unless: states that they do not leave.

        Yields:
          The group, the sample and the row of each that was moved.

        Raises:
          LedgerError: as `move` does.
        """
        opened, usual, num = self._open, USUAL[to], 0
        try:
            for row in rows:
                sample = row[0]
                group = opened.get(sample[:2])
                if group is not None:
                    member = group.members[sample[2]]
                    if member.state is usual and member.attempt == row[1]:
                        member.state = to
                        num += 1
                        yield group, member, row
                        continue
                if self.move(sample, row[1], to, unless=unless):
                    yield *self.find(sample), row
        finally:
            self._counts[usual] -= num
            self._counts[to] += num

    def move(
        self,
        sample: SampleId,
        attempt: int,
        to: State,
        *,
        unless: frozenset[State] = frozenset(),
    ) -> bool:
        """Move one sample within its attempt.

        Args:
          sample: which.
          attempt: the delivery that the caller speaks of.
          to: admitted, running, waiting_env, paused or scored.
          unless: states that it does not leave, whatever the attempt.

        Returns:
          False where nothing was done: the attempt is an old one, the group has
          ended, or the attempt has passed that stage already.

        Raises:
          LedgerError: unknown sample, an attempt from the future, no such transition.
        """
        group = self._open.get(sample[:2])
        if group is None:
            return self._is_late(sample, attempt, to)
        member = group.members[sample[2]]
        state = group.state or member.state
        if state in unless:
            return False
        if member.attempt != attempt:
            return self._is_late(sample, attempt, to)
        if to not in LEGAL_ALONE[state]:
            if STAGE[state] >= STAGE[to]:
                return False
            raise _illegal(sample, state, to)
        member.state = to
        self._counts[state] -= 1
        self._counts[to] += 1
        return True

    def requeue(
        self, sample: SampleId, attempt: int, *, is_failure: bool = True
    ) -> bool:
        """Give the attempt up and queue the same draw as the next attempt.

        Args:
          sample: which.
          attempt: the delivery that is lost.
          is_failure: whether it counts in `failures` (a cancelled one does not).

        Returns:
          False where nothing was done, as in `move`.

        Raises:
          LedgerError: as in `move`; a sample that is queued already cannot be lost.
        """
        member = self._member(sample)
        if member is None or member.attempt != attempt:
            return self._is_late(sample, attempt, State.QUEUED)
        state = member.state
        if State.QUEUED not in LEGAL[state]:
            if state is State.QUEUED:
                raise _illegal(sample, state, State.QUEUED)
            return False
        member.state = State.QUEUED
        member.attempt += 1
        member.failures += is_failure
        self._counts[state] -= 1
        self._counts[State.QUEUED] += 1
        return True

    def ready(self, group: GroupId) -> None:
        """All samples are scored and the group may train.

        Args:
          group: an open one.

        Raises:
          LedgerError: where one is in another state, or the group is not open.
        """
        self._move_all(group, State.READY)

    def lease(self, group: GroupId, update: int) -> None:
        """Hand a ready group to an update.

        Args:
          group: a ready one.
          update: index of the update.

        Raises:
          LedgerError: where it is not ready.
        """
        self._move_all(group, State.LEASED).update = update
        self._leases.setdefault(update, []).append(group)

    def commit(self, updates: int) -> list[GroupId]:
        """End the groups leased to updates below `updates`: they are on disk."""
        below = sorted(update for update in self._leases if update < updates)
        groups = [group for update in below for group in self._leases.pop(update)]
        for group in groups:
            self._move_all(group, State.COMMITTED)
            self._end(group, _COMMITTED)
        return groups

    def drop(self, group: GroupId, reason: str) -> None:
        """End a group that will not train.

        Args:
          group: an open group that is not leased.
          reason: one word, counted in `dropped_reasons`.

        Raises:
          LedgerError: where it is leased or has ended.
        """
        self._move_all(group, State.DROPPED)
        self._end(group, reason)
        self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def state(self, sample: SampleId) -> State:
        """Where the sample is.

        Args:
          sample: of an open or ended group.

        Returns:
          Its state.

        Raises:
          LedgerError: where it was never opened.
        """
        opened = self._open.get(sample[:2])
        if opened is not None:
            return opened.state or opened.members[sample.sample].state
        how = self._ended.how(GroupId(sample.uid, sample.draw))
        if how is None:
            raise LedgerError(f"{sample} must have been opened, is unknown")
        return State.COMMITTED if how == _COMMITTED else State.DROPPED

    def count(self, state: State) -> int:
        """Samples in one state."""
        return self._counts[state]

    def counts(self) -> dict[str, int]:
        """Samples in each state, zeros included."""
        return {state.value: count for state, count in self._counts.items()}

    def dropped_reasons(self) -> dict[str, int]:
        """Dropped groups by reason."""
        return dict(self._reasons)

    def ended(self) -> Iterator[tuple[GroupId, str]]:
        """Every ended group with "committed" or the reason of its drop."""
        return self._ended.items()

    def open_groups(self) -> tuple[GroupId, ...]:
        """Every group that has not ended, in the order of opening."""
        return tuple(GroupId(*group) for group in self._open)

    def snapshot(self) -> dict[str, Any]:
        """The whole ledger as JSON values; ended groups are in it as they are kept."""
        return {
            "samples_per_group": self._samples_per_group,
            "open": [
                [
                    *group,
                    opened.update,
                    [(opened.state or one.state).value for one in opened.members],
                    [member.attempt for member in opened.members],
                    [member.failures for member in opened.members],
                ]
                for group, opened in self._open.items()
            ],
            "ended": self._ended.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any], *, updates: int) -> None:
        """Take over a snapshot as it must look after a crash.

        Groups leased to updates below `updates` are in the weights that are restored
        with the snapshot, so they are committed. Whatever else had not ended is queued
        as its next attempt.

        Args:
          snapshot: what `snapshot` returned, possibly through JSON.
          updates: updates that the restored weights hold.

        Raises:
          ValueError: where the snapshot has groups of another size.
        """
        if snapshot["samples_per_group"] != self._samples_per_group:
            raise ValueError(
                "samples_per_group must be that of the snapshot, "
                f"{snapshot['samples_per_group']}, got {self._samples_per_group}; "
                "start a new run directory to change it"
            )
        for table in (self._open, self._leases, self._reasons):
            table.clear()
        self._ended = Ended()
        self._counts = dict.fromkeys(State, 0)
        for how, entries in snapshot["ended"].items():
            for group in listed(entries):
                self._take_over(group, how)
        for uid, draw, update, _, attempts, failures in snapshot["open"]:
            group = GroupId(uid, draw)
            if update is not None and update < updates:
                self._take_over(group, _COMMITTED)
                continue
            opened = self.open(group)
            told = zip(opened.members, attempts, failures, strict=True)
            for member, attempt, member.failures in told:
                member.attempt = attempt + 1

    def _is_late(self, sample: SampleId, attempt: int, to: State) -> bool:
        """False where the attempt is an old one or its group has ended, else raises."""
        member = self._member(sample)
        if member is None:
            if self._ended.has_mark(GroupId(sample.uid, sample.draw)):
                return False
            raise LedgerError(f"{sample} must be open to become {to.value}, is unknown")
        if attempt > member.attempt:
            raise LedgerError(
                f"{sample} must be at attempt {attempt} to become {to.value}, "
                f"is {member.state.value} at attempt {member.attempt}"
            )
        return False

    def _member(self, sample: SampleId) -> Member | None:
        group = self._open.get(sample[:2])
        return None if group is None else group.members[sample.sample]

    def _move_all(self, group: GroupId, to: State) -> OpenGroup:
        opened = self._open.get(group)
        if opened is None:
            raise LedgerError(f"{group} must be open to become {to.value}")
        states = [member.state for member in opened.members]
        if opened.state is not None:
            states = [opened.state] * len(states)
        for state in set(states):
            if to not in LEGAL[state]:
                sample = opened.samples[states.index(state)]
                raise _illegal(sample, state, to)
        for state in set(states):
            self._counts[state] -= states.count(state)
        self._counts[to] += len(states)
        opened.state = to
        return opened

    def _end(self, group: GroupId, how: str) -> None:
        del self._open[group]
        self._ended.add(group, how)

    def _take_over(self, group: GroupId, how: str) -> None:
        self._ended.add(group, how)
        if how == _COMMITTED:
            self._counts[State.COMMITTED] += self._samples_per_group
            return
        self._counts[State.DROPPED] += self._samples_per_group
        self._reasons[how] = self._reasons.get(how, 0) + 1


def _illegal(sample: SampleId, state: State, to: State) -> LedgerError:
    return LedgerError(f"{sample} must not go from {state.value} to {to.value}")
