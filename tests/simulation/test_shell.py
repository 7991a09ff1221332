import collections
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jigsaw_jax import records
from jigsaw_jax.records import GroupId
from jigsaw_jax.runtime import control
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.simulation import outcome, prices, shell
from jigsaw_jax.simulation.shell import StuckError
from tests.simulation.make_train import make, shell_of

# Four groups of two on four slots, a step a second: the first two groups are sampled in
# 5 s and 8 s; the third enters as slots come free.
LENGTHS = ((5, 3), (8, 2), (6, 6), (1, 9))


def spans(trace):
    return [
        (event["start_s"], event["end_s"], event["name"])
        for event in trace.events
        if event["track"] == "learner"
    ]


def test_a_streamed_round_worked_by_hand():
    train = make(Costs__group_s=4.0, Costs__step_s=1.0, Costs__publish_s=2.0)
    trace = shell_of(train, LENGTHS, keeps_events=True).run()
    # Slots: (5, 3) and (8, 2) enter at 0; 6 and 6 at 2 and 3, so they end at 8 and 9;
    # 1 enters at 5 and ends at 6; 9 enters at 6 and ends at 15.
    ends = {
        (event["uid"], event["sample"]): event["end_s"]
        for event in trace.events
        if event["name"] == "sample"
    }
    assert {key: ends[key] for key in ends if key[0] != "sim/4"} == {
        ("sim/0", 0): 5.0,
        ("sim/0", 1): 3.0,
        ("sim/1", 0): 8.0,
        ("sim/1", 1): 2.0,
        ("sim/2", 0): 8.0,
        ("sim/2", 1): 9.0,
        ("sim/3", 0): 6.0,
        ("sim/3", 1): 15.0,
    }
    assert spans(trace) == [
        (5.0, 9.0, "accumulate"),
        (9.0, 13.0, "accumulate"),
        (13.0, 14.0, "step"),
        (14.0, 18.0, "accumulate"),
        (18.0, 22.0, "accumulate"),
        (22.0, 23.0, "step"),
    ]
    # The next round begins when its version is served.
    assert trace.windows[0].end_s == 25.0
    numbers = outcome.outcome(train, prices.prices(train), trace)
    assert numbers.round_s == 25.0
    assert numbers.train_end_s == 23.0
    assert numbers.first_dispatch_s == 5.0
    assert numbers.wait_s == 5.0
    assert numbers.wait_ratio == pytest.approx(5 / 23)
    # 40 slot-seconds of 4 slots x 25 s.
    assert numbers.sampler_idle == pytest.approx(0.6)
    assert numbers.goodput == pytest.approx(40 / 25)
    # The least rollout is 40 tokens over 4 slots, and a last group and step of 5 s; a
    # first group of 5 s and four groups with two steps are more.
    assert numbers.bound_s == 5.0 + 18.0
    assert numbers.efficiency == 1.0


def test_a_synchronous_round_trains_when_all_is_sampled():
    train = make(Pipeline__mode="sync", Pipeline__admission="fifo", Costs__group_s=4.0)
    trace = shell_of(train, LENGTHS, keeps_events=True).run()
    numbers = outcome.outcome(train, prices.prices(train), trace)
    assert numbers.first_dispatch_s == 15.0
    assert numbers.train_end_s == 31.0


def test_hand_offs_take_longer_while_samplers_decode():
    train = make(Costs__group_s=4.0, Costs__step_s=1.0, Costs__train_beside=0.5)
    trace = shell_of(train, LENGTHS, keeps_events=True).run()
    # Groups are there at 5, 8, 9 and 15 s, when the last slot ends.
    assert spans(trace) == [
        (5.0, 11.0, "accumulate"),
        (11.0, 17.0, "accumulate"),
        (17.0, 18.0, "step"),
        (18.0, 26.0, "accumulate"),
        (26.0, 27.0, "step"),
    ]


def test_a_trainer_of_whole_updates_begins_with_the_last_group_of_one():
    train = make(Costs__group_s=4.0, Costs__trains="update")
    trace = shell_of(train, LENGTHS, keeps_events=True).run()
    assert spans(trace)[0] == (8.0, 16.0, "accumulate")
    assert spans(trace)[2] == (16.0, 24.0, "accumulate")


def test_a_call_to_train_waits_before_it_computes_and_a_round_is_called_once():
    ends_s, waits_s = {}, {}
    for trains, mode in (("group", "stream"), ("update", "stream"), ("round", "sync")):
        train = make(
            Costs__group_s=4.0,
            Costs__dispatch_s=2.0,
            Costs__trains=trains,
            Pipeline__mode=mode,
            Pipeline__admission="fifo",
            Simulation__rounds=2,
        )
        trace = shell_of(train, LENGTHS, keeps_events=True).run()
        numbers = outcome.outcome(train, prices.prices(train), trace)
        ends_s[trains], waits_s[trains] = numbers.train_end_s, numbers.wait_s
        assert numbers.efficiency <= 1
    # Groups are there at 5, 8, 9 and 15 s. One by one: 7 to 11, 13 to 17, then the two
    # that are there in one hand-off, 19 to 27.
    assert ends_s["group"] == 27.0
    # Updates: 10 to 18 and 20 to 28.
    assert (ends_s["update"], waits_s["update"]) == (28.0, 12.0)
    # The round: 17 to 33.
    assert (ends_s["round"], waits_s["round"]) == (33.0, 17.0)


def test_rewards_wait_for_a_free_process():
    train = make(Workload__reward_s=10.0, Reward__processes=1, Costs__group_s=1.0)
    trace = shell_of(train, ((1, 1), (1, 1)), keeps_events=True).run()
    # Four rewards one after the other: the first group is scored at 21 s.
    assert spans(trace)[0][0] == 21.0


def test_the_same_seed_gives_the_same_trace_and_another_gives_another():
    train = make(Workload__reward_s=0.3, Workload__reward_sigma=1.0)
    events = [
        shell_of(train, seed=seed, keeps_events=True).run().events for seed in (0, 0, 1)
    ]
    assert events[0] == events[1]
    assert events[0] != events[2]


def test_the_shell_drives_the_machine_of_the_runtime_and_carries_all_its_effects():
    train = make()
    one = shell_of(train)
    assert type(one.pipeline) is Pipeline
    assert set(shell._CARRIERS) == set(control._CARRIERS)


def test_the_events_of_a_simulated_run_replay_to_its_own_effects():
    train = make(Workload__flat_rate=0.3, Pipeline__redraws_max=1)
    one = shell_of(train, seed=3)
    calls, machine = [], one.pipeline.apply

    def apply(*events):
        effects = machine(*events)
        calls.append((events, list(effects)))
        return effects

    one.pipeline.apply = apply
    one.run()
    again = Pipeline(
        train.pipeline,
        updates=10**9,
        checkpoint_every=train.store.checkpoint_every,
    )
    again.start(0.0)
    assert len(calls) > 20
    for events, effects in calls:
        assert again.apply(*events) == effects


@settings(max_examples=12, deadline=None)
@given(
    mode=st.sampled_from(["sync", "stream", "async"]),
    workers=st.integers(1, 4),
    calls=st.integers(1, 5),
    turns=st.integers(1, 3),
    failure_s=st.sampled_from([0.0, 150.0]),
    flat=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_every_completion_ends_once_and_no_slot_is_used_twice(
    mode, workers, calls, turns, failure_s, flat, seed
):
    train = make(
        Pipeline__mode=mode,
        Pipeline__admission="fifo",
        Pipeline__staleness_max=1 if mode == "async" else 0,
        Pipeline__early_stop=mode == "async",
        Fleet__workers=workers,
        Fleet__failure_every_s=failure_s,
        Fleet__repair_s=20.0,
        Sampler__steps_per_call=calls,
        Workload__turns=turns,
        Workload__tool_s=3.0,
        Workload__flat_rate=flat,
        Workload__reward_s=1.0,
        Pipeline__attempts_max=50,
        Simulation__rounds=3,
        Costs__group_s=5.0,
    )
    one = shell_of(train, seed=seed, keeps_events=True)
    trace = one.run()
    intervals = collections.defaultdict(list)
    ended = collections.Counter()
    for event in trace.events:
        if event["name"] == "sample":
            intervals[event["track"]].append((event["start_s"], event["end_s"]))
            ended[event["uid"], event["draw"], event["sample"]] += 1
            lengths = one._workload.tokens(
                records.SampleId(event["uid"], event["draw"], event["sample"])
            )
            assert event["num_tokens"] == lengths
            # A step a second, and never fewer steps than tokens; what was paused has
            # its last part here.
            is_whole = event["end_s"] - event["start_s"] >= lengths - 1e-6
            assert is_whole or mode == "async"
    for own in intervals.values():
        own.sort()
        pairs = itertools.pairwise(own)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairs)
    trained = [group for window in trace.windows for group in window.trained]
    assert len(set(trained)) == len(trained)
    for group in trained:
        for sample in range(train.pipeline.samples_per_group):
            assert ended[group.uid, group.draw, sample] >= 1
    if not failure_s:
        assert set(ended.values()) == {1}
    counts = one.pipeline.ledger_counts()
    assert counts["leased"] + counts["committed"] >= len(trained)
    assert trace.busy_s <= trace.offered_s + 1e-6


def test_a_group_without_variance_does_not_train():
    train = make(Workload__flat_rate=0.5, Simulation__rounds=4)
    one = shell_of(train, seed=1)
    trace = one.run()
    trained = {group for window in trace.windows for group in window.trained}
    flat = {
        GroupId(f"sim/{position}", 0)
        for position in range(16)
        if one._workload.value(records.SampleId(f"sim/{position}", 0, 1)) == 0.0
    }
    assert flat
    assert not trained & flat
    assert len(trained) == 16 - len(flat)


def test_a_run_that_can_never_train_says_so():
    train = make(
        Workload__flat_rate=1.0, Pipeline__empty_rounds_max=2, Simulation__rounds=5
    )
    with pytest.raises(StuckError, match="nothing could train in 2 rounds"):
        shell_of(train).run()
