"""The injector finds what it is there to find, and the kept seeds stay clean."""

import pathlib
import subprocess
import sys

import pytest

from jigsaw_jax.records import StepUpdate
from jigsaw_jax.schedule.admission import Fifo, FrontierAdaptive
from jigsaw_jax.schedule.judging import Judging
from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.schedule.requests import Requests
from jigsaw_jax.schedule.rounds import Rounds
from jigsaw_jax.schedule.sampling import Sampling
from jigsaw_jax.schedule.states import State
from tests.simulation import vopr, vopr_plan
from tests.simulation.vopr_plan import Fault
from tests.simulation.vopr_world import World

KEPT = sorted((pathlib.Path(__file__).parent / "regressions").glob("*.json"))


def test_ten_seeds_are_kept():
    assert len(KEPT) >= 10


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_seed_stays_clean(path):
    applied, violation = vopr.run(*vopr_plan.from_text(path.read_text()))
    assert violation is None
    assert applied >= 200


def first_violation(seeds=40, events=200):
    """What the first of some seeds that fails says, or ""."""
    for seed in range(seeds):
        faults = vopr_plan.faults(seed, events)
        violation = vopr.run(seed, events, faults)[1]
        if violation is not None:
            return violation
    return ""


# Planted bugs, of each kind.


def test_without_a_planted_bug_there_is_nothing_to_find():
    assert not first_violation(seeds=3)


def test_a_group_that_is_lost_at_its_opening_is_caught(monkeypatch):
    opened = []

    def add(self, group):
        # One in ten is in the ledger and known to nobody else.
        opened.append(group)
        if len(opened) % 10:
            original(self, group)

    original = Sampling.add
    monkeypatch.setattr(Sampling, "add", add)
    assert first_violation()


def test_a_complete_group_that_is_lost_before_its_verdict_is_caught(monkeypatch):
    def scored(self, event):
        original(self, event)
        lost = [order for order in self.complete if order % 5 == 4]
        self.complete[:] = [order for order in self.complete if order not in lost]

    original = Sampling.scored
    monkeypatch.setattr(Sampling, "scored", scored)
    assert first_violation()


def test_a_commit_that_counts_twice_is_caught(monkeypatch):
    def commit(self, updates):
        groups = original(self, updates)
        self._counts[State.COMMITTED] += len(groups)
        return groups

    original = Ledger.commit
    monkeypatch.setattr(Ledger, "commit", commit)
    assert first_violation().startswith("ledger")


def test_a_group_that_trains_twice_is_caught(monkeypatch):
    def pass_or_drop(self, group):
        original(self, group)
        if group.is_judged and group.order % 3 == 2:
            self._now.pending.append(group)

    original = Judging._pass_or_drop
    monkeypatch.setattr(Judging, "_pass_or_drop", pass_or_drop)
    assert first_violation()


def test_a_sample_under_another_version_than_the_one_served_is_caught(monkeypatch):
    def admit(self, version):
        original(self, max(version - 1, 0))

    original = Sampling.admit
    monkeypatch.setattr(Sampling, "admit", admit)
    assert "version" in first_violation()


def test_a_version_published_in_the_middle_of_a_round_is_caught(monkeypatch):
    def close(self, now):
        # The round ends when its first update has been stepped.
        groups, now.groups = now.groups, {}
        version = original(self, now)
        now.groups = groups
        return version

    original = Rounds.close
    monkeypatch.setattr(Rounds, "close", close)
    assert first_violation()


def test_a_queue_that_is_stuck_is_caught(monkeypatch):
    def add(self, order, samples):
        samples = list(samples)
        # A sample that comes alone is a retry; it never gets in line.
        original(self, order, samples if len(samples) > 1 else [])

    original = Requests.add
    monkeypatch.setattr(Requests, "add", add)
    assert first_violation()


@pytest.mark.slow
def test_samples_beyond_the_adaptive_limit_are_caught(monkeypatch):
    monkeypatch.setattr(FrontierAdaptive, "choose", Fifo.choose)
    monkeypatch.setattr(FrontierAdaptive, "room", Fifo.room)
    assert first_violation().startswith("frontier")


@pytest.mark.slow
def test_an_adaptive_frontier_that_keeps_slots_free_is_caught(monkeypatch):
    def choose(self, requests):
        limit = self.gap.limit - 1
        return requests.first() if self.gap.running < limit else None

    monkeypatch.setattr(FrontierAdaptive, "choose", choose)
    assert first_violation()


def test_a_learner_that_is_left_waiting_is_caught(monkeypatch):
    def takeable(self, now):
        found = original(self, now)
        return found if len(found) > 1 or not now.groups else []

    original = Rounds.takeable
    monkeypatch.setattr(Rounds, "takeable", takeable)
    assert first_violation()


# The injector itself.


def test_the_same_seed_gives_the_same_events():
    def trace(seed):
        world = World(seed, vopr_plan.faults(seed, 60))
        seen = []
        carry = world._carry

        def note(effects):
            seen.extend(effects)
            carry(effects)

        world._carry = note
        world.run(60)
        return seen

    assert trace(3) == trace(3)
    assert trace(3) != trace(4)


def test_replays_survive_being_written_down():
    faults = vopr_plan.faults(1, 3000)
    assert faults
    text = vopr_plan.to_text(1, 300, faults)
    assert vopr_plan.from_text(text) == (1, 300, faults)
    assert vopr_plan.from_text('{"seed": 1, "events": 3000}') == (1, 3000, faults)


def test_shrinking_leaves_exactly_the_faults_that_are_needed():
    faults = [Fault("fail", at, 0.0) for at in range(40)]
    needed = {faults[7], faults[31]}
    left = vopr.shrink(faults, lambda fewer: needed <= set(fewer))
    assert left == [faults[7], faults[31]]
    assert vopr.shrink(faults, lambda _: True) == []


def test_a_failing_seed_shrinks_to_the_one_fault_that_it_needs(monkeypatch):
    monkeypatch.setattr(Sampling, "failed", lambda *_: None)
    fail = Fault("fail", 40, 0.5)
    others = [Fault("flat", 10, 0.1), Fault("resize", 30, 0.2), Fault("hang", 9, 0.5)]
    text = vopr.minimal(2, 100, [*others, fail, Fault("stop", 90, 0.5)])
    seed, events, left = vopr_plan.from_text(text)
    assert left == (fail,)
    assert vopr.run(seed, events, left)[1] is not None
    assert vopr.run(seed, events, [])[1] is None


def test_the_command_prints_what_it_did(capsys):
    assert vopr.main(["--seeds", "2", "--events", "50", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert "0 violations" in out
    assert vopr.main(["--replay", '{"seed": 1, "events": 50}']) == 0
    assert "no violation" in capsys.readouterr().out


@pytest.mark.slow
def test_every_kind_of_work_and_of_fault_comes_up():
    seen, kinds = set(), set()
    for seed in range(12):
        world = World(seed, vopr_plan.faults(seed, 1500))
        carry, befall = world._carry, world._befall

        def note(effects, carry=carry, world=world):
            size = world.episode.settings.groups_per_update
            seen.update(type(effect).__name__ for effect in effects)
            for effect in effects:
                if isinstance(effect, StepUpdate) and len(effect.groups) < size:
                    seen.add("tail")
                seen.add(getattr(effect, "reason", None))
            carry(effects)

        def note_fault(fault, befall=befall):
            kinds.add(fault.kind)
            befall(fault)

        world._carry, world._befall = note, note_fault
        world.run(1500)
    assert kinds == set(vopr_plan.AT_EVENT)
    wanted = {"PauseSample", "CancelSample", "PublishVersion", "WriteCheckpoint"}
    reasons = {"attempts", "no_score", "zero_variance", "run_end", "tail"}
    assert wanted | reasons <= seen


@pytest.mark.slow
def test_a_million_events_without_a_violation():
    # In a process of its own, where no types are checked at each call.
    words = ["-m", "tests.simulation.vopr", "--seeds", "200", "--events", "5000"]
    found = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    assert int(found.stdout.split()[0]) >= 1_000_000
    assert "0 violations" in found.stdout
