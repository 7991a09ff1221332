"""The states of a sample, and which may follow which; `ledger` has the drawing."""

import enum


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


LEGAL: dict[State, frozenset[State]] = {
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
STAGE = {state: stage for stage, state in enumerate(State)}
# Those of one sample; the others are its group's.
LEGAL_ALONE = {
    state: frozenset(to for to in legal if STAGE[to] <= STAGE[State.SCORED])
    for state, legal in LEGAL.items()
}
# What a sample nearly always was before.
USUAL = {
    State.ADMITTED: State.QUEUED,
    State.RUNNING: State.ADMITTED,
    State.WAITING_ENV: State.RUNNING,
    State.SCORED: State.WAITING_ENV,
}
