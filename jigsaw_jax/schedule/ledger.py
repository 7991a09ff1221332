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

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

from jigsaw_jax.records import GroupId, SampleId
from jigsaw_jax.schedule.ended import Ended, listed


class State(enum.Enum):
    """Where a sample is."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    RUNNING = "running"
    WAITING_ENV = "waiting_env"
    PAUSED = "paused"
    SCORED = "scored"
    READY = "ready"
    LEASED = "leased"
    COMMITTED = "committed"
    DROPPED = "dropped"

    # Members are single objects; Enum's own hash is a Python call on every look-up.
    __hash__ = object.__hash__


class LedgerError(Exception):
    """A transition that the life cycle does not have; a fault of the caller."""


_LEGAL: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.ADMITTED, State.DROPPED}),
    State.ADMITTED: frozenset(
        {State.RUNNING, State.WAITING_ENV, State.QUEUED, State.DROPPED}
    ),
    State.RUNNING: frozenset(
        {State.WAITING_ENV, State.PAUSED, State.QUEUED, State.DROPPED}
    ),
    State.WAITING_ENV: frozenset(
        {State.RUNNING, State.PAUSED, State.SCORED, State.QUEUED, State.DROPPED}
    ),
    State.PAUSED: frozenset({State.RUNNING, State.QUEUED, State.DROPPED}),
    State.SCORED: frozenset({State.READY, State.DROPPED}),
    State.READY: frozenset({State.LEASED, State.DROPPED}),
    State.LEASED: frozenset({State.COMMITTED}),
    State.COMMITTED: frozenset(),
    State.DROPPED: frozenset(),
}
# A report of a stage that the attempt has already passed is a duplicate.
_STAGE = {state: stage for stage, state in enumerate(State)}
# Those of one sample; the others are its group's.
_LEGAL_ALONE = {
    state: frozenset(to for to in legal if _STAGE[to] <= _STAGE[State.SCORED])
    for state, legal in _LEGAL.items()
}
_COMMITTED = State.COMMITTED.value


@dataclasses.dataclass(slots=True)
class _Entry:
    """A group that has not ended; `update` is the lease.

    Nearly every sample has one attempt, so that groups share their rows of zeros.
    """

    states: list[State]
    attempts: Sequence[int]
    failures: Sequence[int]
    update: int | None = None


class Ledger:
    """Every sample of a run, each in one state; groups end as a whole."""

    def __init__(self, samples_per_group: int) -> None:
        self._samples_per_group = samples_per_group
        self._zeros = (0,) * samples_per_group
        # By uid and draw: a part of a sample's identity equals its group's, and is
        # made in a third of the time.
        self._open: dict[tuple[str, int], _Entry] = {}
        self._leases: dict[int, list[GroupId]] = {}
        # How each ended group ended: "committed", or the reason of its drop.
        self._ended = Ended()
        self._counts = dict.fromkeys(State, 0)
        self._reasons: dict[str, int] = {}

    def open(self, group: GroupId) -> None:
        """Queue the samples of a new group.

        Args:
          group: a (uid, draw) that the ledger has never seen.

        Raises:
          LedgerError: where it has.
        """
        if group in self._open or group in self._ended:
            raise LedgerError(f"{group} must be new, it was opened before")
        size, zeros = self._samples_per_group, self._zeros
        self._open[group] = _Entry([State.QUEUED] * size, zeros, zeros)
        self._counts[State.QUEUED] += size

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
        index = sample.sample
        entry = self._open.get(sample[:2])
        if unless and entry is not None and entry.states[index] in unless:
            return False
        if entry is None or entry.attempts[index] != attempt:
            return self._is_late(sample, attempt, to)
        states = entry.states
        state = states[index]
        if to not in _LEGAL_ALONE[state]:
            if _STAGE[state] >= _STAGE[to]:
                return False
            raise _illegal(sample, state, to)
        states[index] = to
        counts = self._counts
        counts[state] -= 1
        counts[to] += 1
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
        entry = self._open.get(sample[:2])
        if entry is None or entry.attempts[sample.sample] != attempt:
            return self._is_late(sample, attempt, State.QUEUED)
        state = entry.states[sample.sample]
        if State.QUEUED not in _LEGAL[state]:
            if state is State.QUEUED:
                raise _illegal(sample, state, State.QUEUED)
            return False
        entry.states[sample.sample] = State.QUEUED
        entry.attempts = _more(entry.attempts, sample.sample, 1)
        entry.failures = _more(entry.failures, sample.sample, is_failure)
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
        group = GroupId(sample.uid, sample.draw)
        if group in self._open:
            return self._open[group].states[sample.sample]
        how = self._ended.how(group)
        if how is None:
            raise LedgerError(f"{sample} must have been opened, is unknown")
        return State.COMMITTED if how == _COMMITTED else State.DROPPED

    def attempt(self, sample: SampleId) -> int:
        """The current attempt of a sample whose group is open."""
        return self._open[sample[:2]].attempts[sample.sample]

    def failures(self, sample: SampleId) -> int:
        """Attempts lost to failures, of a sample whose group is open."""
        return self._open[sample[:2]].failures[sample.sample]

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
                    entry.update,
                    [state.value for state in entry.states],
                    list(entry.attempts),
                    list(entry.failures),
                ]
                for group, entry in self._open.items()
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
            self.open(group)
            entry = self._open[group]
            entry.attempts = [attempt + 1 for attempt in attempts]
            entry.failures = failures

    def _is_late(self, sample: SampleId, attempt: int, to: State) -> bool:
        """False where the attempt is an old one or its group has ended, else raises."""
        group = GroupId(sample.uid, sample.draw)
        entry = self._open.get(group)
        if entry is None:
            if self._ended.has_mark(group):
                return False
            raise LedgerError(f"{sample} must be open to become {to.value}, is unknown")
        current = entry.attempts[sample.sample]
        if attempt > current:
            raise LedgerError(
                f"{sample} must be at attempt {attempt} to become {to.value}, "
                f"is {entry.states[sample.sample].value} at attempt {current}"
            )
        return False

    def _move_all(self, group: GroupId, to: State) -> _Entry:
        entry = self._open.get(group)
        if entry is None:
            raise LedgerError(f"{group} must be open to become {to.value}")
        states = dict.fromkeys(entry.states)
        for state in states:
            if to not in _LEGAL[state]:
                sample = SampleId(*group, entry.states.index(state))
                raise _illegal(sample, state, to)
        for state in states:
            self._counts[state] -= entry.states.count(state)
        self._counts[to] += len(entry.states)
        entry.states = [to] * len(entry.states)
        return entry

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


def _more(counts: Sequence[int], index: int, num: int) -> list[int]:
    return [*counts[:index], counts[index] + num, *counts[index + 1 :]]


def _illegal(sample: SampleId, state: State, to: State) -> LedgerError:
    return LedgerError(f"{sample} must not go from {state.value} to {to.value}")
