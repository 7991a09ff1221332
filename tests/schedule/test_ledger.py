import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jigsaw_jax.records import GroupId, SampleId
from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.schedule.states import LedgerError, State

GROUP = GroupId("p", 0)
FIRST, SECOND = SampleId("p", 0, 0), SampleId("p", 0, 1)
PATH = [State.ADMITTED, State.RUNNING, State.WAITING_ENV, State.SCORED]

# Where one sample may go within its attempt, written from the life cycle.
MOVES = {
    "queued": {"admitted"},
    "admitted": {"running", "waiting_env"},
    "running": {"waiting_env", "paused"},
    "waiting_env": {"running", "paused", "scored"},
    "paused": {"running"},
    "scored": set(),
}
ROUTES = {
    "queued": [],
    "admitted": PATH[:1],
    "running": PATH[:2],
    "waiting_env": PATH[:3],
    "paused": [*PATH[:2], State.PAUSED],
    "scored": PATH,
}
LATER = list(ROUTES)


def at(state, attempt=0):
    """A ledger with one group whose first sample is in `state`."""
    ledger = Ledger(2)
    ledger.open(GROUP)
    for to in ROUTES[state]:
        assert ledger.move(FIRST, attempt, to)
    return ledger


def scored():
    ledger = at("scored")
    for to in PATH:
        ledger.move(SECOND, 0, to)
    return ledger


@pytest.mark.parametrize("state", ROUTES)
@pytest.mark.parametrize("to", [s for s in ROUTES if s != "queued"])
def test_a_sample_moves_only_where_the_life_cycle_leads(state, to):
    ledger = at(state)
    if to in MOVES[state]:
        assert ledger.move(FIRST, 0, State(to))
        assert ledger.state(FIRST) is State(to)
    elif LATER.index(to) <= LATER.index(state):
        assert not ledger.move(FIRST, 0, State(to))
        assert ledger.state(FIRST) is State(state)
    else:
        with pytest.raises(LedgerError, match=rf"'p'.*from {state} to {to}"):
            ledger.move(FIRST, 0, State(to))
        assert ledger.state(FIRST) is State(state)


@pytest.mark.parametrize("to", [State.READY, State.LEASED, State.COMMITTED])
def test_one_sample_never_enters_a_state_of_groups(to):
    with pytest.raises(LedgerError):
        scored().move(FIRST, 0, to)


@pytest.mark.parametrize("state", ["admitted", "running", "waiting_env", "paused"])
def test_a_lost_attempt_is_queued_as_the_next_and_its_results_are_ignored(state):
    ledger = at(state)
    assert ledger.requeue(FIRST, 0)
    assert (ledger.state(FIRST), ledger.find(FIRST)[1].attempt) == (State.QUEUED, 1)
    assert ledger.find(FIRST)[1].failures == 1
    for to in PATH:
        assert not ledger.move(FIRST, 0, to)
    assert not ledger.requeue(FIRST, 0)
    assert ledger.move(FIRST, 1, State.ADMITTED)
    assert ledger.requeue(FIRST, 1, is_failure=False)
    assert (ledger.find(FIRST)[1].attempt, ledger.find(FIRST)[1].failures) == (2, 1)


def test_a_scored_attempt_cannot_be_lost_and_a_queued_one_is_not_there_to_lose():
    assert not at("scored").requeue(FIRST, 0)
    with pytest.raises(LedgerError):
        at("queued").requeue(FIRST, 0)


def test_attempts_from_the_future_and_unknown_samples_are_errors():
    ledger = at("running")
    with pytest.raises(LedgerError, match="attempt 1"):
        ledger.move(FIRST, 1, State.WAITING_ENV)
    for sample in (SampleId("q", 0, 0), SampleId("p", 1, 0)):
        with pytest.raises(LedgerError, match="unknown"):
            ledger.move(sample, 0, State.ADMITTED)
        with pytest.raises(LedgerError, match="unknown"):
            ledger.state(sample)


def test_a_group_is_ready_leased_and_committed_as_a_whole():
    ledger = scored()
    ledger.ready(GROUP)
    ledger.lease(GROUP, 4)
    assert ledger.counts()["leased"] == 2
    assert ledger.commit(4) == []
    assert ledger.commit(5) == [GROUP]
    assert ledger.commit(5) == []
    assert ledger.state(FIRST) is State.COMMITTED
    assert dict(ledger.ended()) == {GROUP: "committed"}
    assert not ledger.move(FIRST, 0, State.SCORED)


def test_a_group_is_not_ready_before_its_last_sample_is_scored():
    with pytest.raises(LedgerError, match="from queued to ready"):
        at("scored").ready(GROUP)


def test_nothing_ends_twice():
    ledger = scored()
    ledger.drop(GROUP, "zero_variance")
    for end in (
        lambda: ledger.drop(GROUP, "run_end"),
        lambda: ledger.ready(GROUP),
        lambda: ledger.open(GROUP),
    ):
        with pytest.raises(LedgerError):
            end()
    assert ledger.dropped_reasons() == {"zero_variance": 1}
    leased = scored()
    leased.ready(GROUP)
    leased.lease(GROUP, 0)
    with pytest.raises(LedgerError, match="from leased to dropped"):
        leased.drop(GROUP, "run_end")


def test_after_a_crash_only_what_the_restored_weights_hold_is_committed():
    ledger = Ledger(2)
    groups = [GroupId(f"p{i}", 0) for i in range(4)]
    for group in groups:
        ledger.open(group)
    for update, group in enumerate(groups[:2]):
        for index in range(2):
            for to in PATH:
                ledger.move(SampleId(group.uid, group.draw, index), 0, to)
        ledger.ready(group)
        ledger.lease(group, update)
    ledger.move(SampleId("p2", 0, 0), 0, State.ADMITTED)
    ledger.drop(groups[3], "attempts")
    restored = Ledger(2)
    restored.restore(json.loads(json.dumps(ledger.snapshot())), updates=1)
    assert dict(restored.ended()) == {groups[0]: "committed", groups[3]: "attempts"}
    assert restored.open_groups() == (groups[1], groups[2])
    for group in groups[1:3]:
        for index in range(2):
            sample = SampleId(group.uid, group.draw, index)
            assert restored.state(sample) is State.QUEUED
            assert restored.find(sample)[1].attempt == 1
            assert restored.find(sample)[1].failures == 0
    # The rolled-back lease is gone too.
    assert restored.commit(9) == []
    assert restored.dropped_reasons() == {"attempts": 1}
    assert sum(restored.counts().values()) == 8


def test_an_ended_group_takes_one_entry_of_the_snapshot():
    ledger = Ledger(64)
    for index in range(100):
        ledger.open(GroupId(str(index), 0))
        ledger.drop(GroupId(str(index), 0), "run_end")
    snapshot = ledger.snapshot()
    assert snapshot["open"] == []
    assert snapshot["ended"] == {"run_end": [[str(i), 0] for i in range(100)]}


@pytest.mark.slow
def test_a_snapshot_has_ended_groups_packed_and_reads_them_listed_too():
    ledger = Ledger(1)
    groups = [GroupId(f"a/{i}/0", i % 2) for i in range(25_000)]
    for index, group in enumerate(groups):
        ledger.open(group)
        ledger.drop(group, "attempts" if index % 5 else "no_score")
    ended = ledger.snapshot()["ended"]
    # What the control loop makes of each is a block of 512, so an entry in 512.
    assert sum(map(len, ended.values())) < 25_000 // 512 + 2 * 512
    again, before = Ledger(1), Ledger(1)
    snapshot = json.loads(json.dumps(ledger.snapshot()))
    again.restore(snapshot, updates=0)
    assert dict(again.ended()) == dict(ledger.ended())
    assert list(again.ended()) == list(ledger.ended())
    assert again.dropped_reasons() == ledger.dropped_reasons()
    assert again.counts() == ledger.counts()
    # As checkpoints had them before they were packed.
    lists = {}
    for group, how in ledger.ended():
        lists.setdefault(how, []).append([*group])
    before.restore(snapshot | {"ended": lists}, updates=0)
    assert list(before.ended()) == list(ledger.ended())
    assert before.snapshot() == ledger.snapshot()


def test_groups_of_another_size_are_refused():
    with pytest.raises(ValueError, match="samples_per_group must be that of"):
        Ledger(3).restore(Ledger(2).snapshot(), updates=0)


class LedgerMachine(RuleBasedStateMachine):
    """The ledger beside a dictionary of (state, attempt) a sample."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(2)
        self.states = {}
        self.attempts = {}
        self.ends = {}
        self.updates = {}

    def samples(self, group):
        return [SampleId(group.uid, group.draw, i) for i in range(2)]

    @rule(uid=st.sampled_from("pqr"), draw=st.integers(0, 1))
    def open(self, uid, draw):
        group = GroupId(uid, draw)
        if SampleId(*group, 0) in self.states:
            with pytest.raises(LedgerError):
                self.ledger.open(group)
            return
        self.ledger.open(group)
        for sample in self.samples(group):
            self.states[sample], self.attempts[sample] = "queued", 0

    @rule(
        data=st.data(),
        to=st.sampled_from([s for s in ROUTES if s != "queued"] * 2 + ["queued"]),
        back=st.sampled_from([0, 0, 0, 1]),
    )
    def move(self, data, to, back):
        if not self.states:
            return
        sample = data.draw(st.sampled_from(sorted(self.states)))
        attempt = self.attempts[sample] - back
        state = self.states[sample]

        def act():
            if to == "queued":
                return self.ledger.requeue(sample, attempt)
            return self.ledger.move(sample, attempt, State(to))

        allowed = MOVES.get(state, set()) | (
            {"queued"} if state in LATER[1:5] else set()
        )
        if back or state in ("committed", "dropped"):
            assert not act()
        elif to in allowed:
            assert act()
            self.states[sample] = to
            self.attempts[sample] += to == "queued"
        elif (to != "queued" or state == "queued") and (
            state == "queued" or LATER.index(to) > (LATER.index(state))
            if state in LATER
            else False
        ):
            with pytest.raises(LedgerError):
                act()
        else:
            assert not act()

    @rule(data=st.data(), how=st.sampled_from(["ready", "lease", "drop"]))
    def move_group(self, data, how):
        groups = sorted({GroupId(s.uid, s.draw) for s in self.states})
        if not groups:
            return
        group = data.draw(st.sampled_from(groups))
        states = {self.states[s] for s in self.samples(group)}
        update = len(self.updates)
        act, to, allowed = {
            "ready": (self.ledger.ready, "ready", states == {"scored"}),
            "lease": (
                lambda g: self.ledger.lease(g, update),
                "leased",
                states == {"ready"},
            ),
            "drop": (
                lambda g: self.ledger.drop(g, "test"),
                "dropped",
                not states & {"leased", "committed", "dropped"},
            ),
        }[how]
        if not allowed:
            with pytest.raises(LedgerError):
                act(group)
            return
        act(group)
        self.states |= dict.fromkeys(self.samples(group), to)
        if how == "lease":
            self.updates[group] = update
        if how == "drop":
            self.ends[group] = "test"

    @rule(updates=st.integers(0, 4))
    def commit(self, updates):
        self.ledger.commit(updates)
        self.take_leases(updates)

    def take_leases(self, updates):
        for group, update in self.updates.items():
            if (
                update < updates
                and self.states[SampleId(group.uid, group.draw, 0)] == "leased"
            ):
                self.states |= dict.fromkeys(self.samples(group), "committed")
                self.ends[group] = "committed"

    @rule(updates=st.integers(0, 4))
    def crash(self, updates):
        snapshot = json.loads(json.dumps(self.ledger.snapshot()))
        self.ledger = Ledger(2)
        self.ledger.restore(snapshot, updates=updates)
        self.take_leases(updates)
        for sample, state in self.states.items():
            if state not in ("committed", "dropped"):
                self.states[sample] = "queued"
                self.attempts[sample] += 1

    @invariant()
    def agrees(self):
        counts = dict.fromkeys((s.value for s in State), 0)
        for sample, state in self.states.items():
            counts[state] += 1
            assert self.ledger.state(sample) is State(state)
            if state not in ("committed", "dropped"):
                assert self.ledger.find(sample)[1].attempt == self.attempts[sample]
        assert self.ledger.counts() == counts
        assert dict(self.ledger.ended()) == self.ends


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
)
