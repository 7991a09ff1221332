import json
import statistics

import pytest

from jigsaw_jax.simulation import fit, hand_offs, outcome, recorded, replay
from jigsaw_jax.simulation.packing import packing_of
from jigsaw_jax.simulation.recorded import CostError
from jigsaw_jax.simulation.writing import Writing
from tests.simulation.make_train import make, shell_of


def interval(track, name, start_s, end_s, **fields):
    own = {"kind": "interval", "track": track, "name": name}
    return {**own, "start_s": start_s, "end_s": end_s, **fields}


def decode(start_s, active, seconds, tokens):
    return interval(
        "sampler", "decode", start_s, start_s + seconds, active=active, tokens=tokens
    )


def sample(start_s, end_s, uid, index, tokens, version=0):
    return interval(
        f"slot/{index:02d}",
        "sample",
        start_s,
        end_s,
        uid=uid,
        draw=0,
        sample=index,
        num_tokens=tokens,
        version=version,
        finish="stop",
    )


def write(folder, events):
    start = {"kind": "start", "incarnation": 1, "at_s": 0.0, "unix_s": 50.0}
    lines = [json.dumps(event) + "\n" for event in [start, *events]]
    (folder / "events.jsonl").write_text("".join(lines))
    return str(folder)


def test_a_device_call_is_told_from_what_is_in_it():
    """Steps, sequences, prefills, inserts, ends, and the learner at work beside it."""
    train = make(Sampler__steps_per_call=4, Workload__prompt_tokens=8)
    costs = {"call": 0.4, "active": 0.04, "prefill": 0.2, "prompt": 0.05, "end": 0.1}
    events, times_s, now_s = [], [], 0.0
    for index in range(60):
        active = 2 + index % 5
        enters, is_new = index % 3 == 0, index % 6 == 0
        # What ended with the call before holds this one up, as others went on.
        ended = index % 3 == 1
        seconds = costs["call"] + costs["active"] * active
        seconds += costs["prompt"] * enters + costs["prefill"] * (enters and is_new)
        seconds += costs["end"] * ended
        is_beside = index % 4 == 3
        if is_beside:
            seconds += 0.06
            events.append(interval("learner", "step", now_s, now_s + seconds, update=0))
        events.append(decode(now_s, active, seconds, 4 * active))
        times_s.append(seconds)
        if enters:
            # It ends with its first call; a second completion of its prompt follows.
            prompt = f"p{index // 6}"
            events.append(sample(now_s, now_s + seconds, prompt, index % 2, 4))
        now_s += seconds
    # It ended early, with most of its slots done.
    events.append(decode(now_s, 6, 0.05, 6))
    found = recorded.decode_costs(train, events)
    (line,) = found.lines
    assert line.fixed_s == pytest.approx(0.1, rel=1e-3)
    assert line.sequence_s == pytest.approx(0.01, rel=1e-3)
    assert found.prefill_token_s == pytest.approx(0.2 / 8, rel=1e-3)
    assert found.insert_s == pytest.approx(0.05, rel=1e-3)
    assert found.finish_s == pytest.approx(0.1, rel=1e-3)
    # As a share of a typical call without it.
    middle_s = statistics.median(times_s)
    assert found.beside == pytest.approx(0.06 / (middle_s - 0.06), rel=1e-3)
    assert found.calls == 4


def test_a_coefficient_that_would_be_negative_is_none():
    # Fuller calls were quicker, by chance: what is left is the mean.
    train = make(Sampler__steps_per_call=1)
    events = [decode(0.0, 1, 0.4, 1), decode(1.0, 3, 0.2, 3)]
    (line,) = recorded.decode_costs(train, events).lines
    assert (line.fixed_s, line.sequence_s) == (pytest.approx(0.3), 0.0)


def test_what_a_token_costs_is_told_from_what_a_group_does():
    # 0.5 s a hand-off, 0.2 s a group, 0.01 s a token; 40 ms between gradient and step.
    sizes = [(1, 100), (1, 160), (2, 150), (3, 420), (2, 300)]
    events = [
        interval(
            "learner",
            "accumulate",
            10.0 * i,
            10.0 * i + 0.5 + 0.2 * groups + 0.01 * tokens,
            update=i,
            groups=groups,
            tokens=tokens,
            prompt_tokens=7 * groups,
        )
        for i, (groups, tokens) in enumerate(sizes)
    ]
    last_s = events[-1]["end_s"]
    events.append(interval("learner", "step", last_s + 0.04, last_s + 0.1, update=4))
    found = recorded.training_costs(make(), events)
    assert found.accumulate_s == pytest.approx(0.5)
    assert found.group_s == pytest.approx(0.2)
    assert found.token_s == pytest.approx(0.01)
    assert found.dispatch_s == pytest.approx(0.04)
    assert recorded.prompt_tokens(events) == 7


def test_how_long_a_slot_waits_for_its_next_completion_is_fitted():
    # Calls of 1 s; an end is known 1.2 s later, so the second call behind it has more.
    train = make(Sampler__steps_per_call=1)
    events = [decode(float(t), 1, 1.0, 1) for t in range(20)]
    events += [sample(5.0 * i, 5.0 * i + 3.0, "a", 0, 3) for i in range(4)]
    # Between two rounds a slot waits for the weights instead.
    events.append(sample(90.0, 93.0, "b", 0, 3, version=1))
    assert recorded.refill_s(events) == pytest.approx(2.0)
    assert recorded.decode_costs(train, events).report_s == pytest.approx(1.5)


def test_hand_offs_are_fitted_and_the_rest_are_means():
    events = [
        interval("learner", "accumulate", 0.0, 1.5, groups=1),
        interval("learner", "accumulate", 2.0, 4.5, groups=3),
        interval("learner", "accumulate", 5.0, 7.0, groups=2),
        interval("learner", "step", 8.0, 8.2),
        interval("learner", "step", 9.0, 9.4),
        interval("publish", "publish", 9.4, 9.9, version=1),
    ]
    found = recorded.training_costs(make(), events)
    assert found.accumulate_s == pytest.approx(1.0)
    assert found.group_s == pytest.approx(0.5)
    assert found.step_s == pytest.approx(0.3)
    assert found.publish_s == pytest.approx(0.5)
    assert found.checkpoint_s == 0.0


def hand_off(start_s, seconds, rows, **fields):
    own = {"groups": 1, "tokens": 9, "rows": rows, "update": 0, **fields}
    return interval("learner", "accumulate", start_s, start_s + seconds, **own)


def test_a_hand_off_is_told_from_its_micro_batches():
    """Half a row costs as much as a whole one, and eight rows more than twice four."""
    train = make(Learner__rows=8, Learner__row_shapes=4, Learner__min_fill=1.0)
    shapes_s = {8: 5.0, 4: 2.0, 2: 1.5, 1: 0.25}
    several = [[4], [4, 1], [8, 2], [8], [2], [8, 4, 1], [4, 2], [2, 1], [1]]
    events = [
        hand_off(10.0 * i, 0.5 + sum(shapes_s[n] for n in rows), rows)
        for i, rows in enumerate(several)
    ]
    events += [sample(30.0 * v, 30.0 * v + 1, "a", 0, 1, v) for v in range(4)]
    # Something else was in the way of one, in a round of its own.
    events.append(hand_off(100.0, 40.0, [4, 2]))
    events.append(interval("learner", "step", 150.0, 150.1, update=0))
    found = recorded.training_costs(train, events)
    assert found.accumulate_s == pytest.approx(0.5, rel=0.01)
    assert dict(found.micro_s) == pytest.approx(shapes_s, rel=0.01)
    assert found.packing == packing_of(train)


def test_what_a_hand_off_takes_alone_is_told_from_what_it_takes_beside_decoding():
    train = make(Learner__rows=8, Learner__row_shapes=4, Learner__min_fill=1.0)
    shapes_s = {8: 4.0, 4: 2.0, 2: 1.0, 1: 0.5}
    events = []
    for index, rows in enumerate([[8], [4], [2], [1], [8, 2], [4, 1], [8], [4]] * 2):
        # Whole, half and not at all beside.
        share = (index % 3) / 2
        seconds = (0.25 + sum(shapes_s[n] for n in rows)) * (1 + 0.2 * share)
        start_s = 20.0 * index
        events.append(hand_off(start_s, seconds, rows))
        if share:
            events.append(decode(start_s, 4, share * seconds, 4))
    events.append(interval("learner", "step", 400.0, 400.1, update=0))
    found = recorded.training_costs(train, events)
    assert found.beside == pytest.approx(0.2)
    assert dict(found.micro_s) == pytest.approx(shapes_s, rel=0.01)
    # Where all are beside, it can't be told.
    alike = [event for event in events if event["name"] != "decode"]
    assert recorded.training_costs(train, alike).beside == 0.0


def test_a_checkpoint_that_is_written_is_told_from_the_rows_behind_it():
    """Eight rows come mostly beside a write, at half the learner's speed."""
    train = make(Learner__rows=8, Learner__row_shapes=4, Learner__min_fill=1.0)
    shapes_s = {8: 4.0, 4: 2.0, 2: 1.0, 1: 0.5}
    events, now_s = [], 0.0
    for index, rows in enumerate([[4, 1], [4], [8, 2], [8], [2, 1], [8], [8, 1]] * 3):
        own_s = 0.25 + sum(shapes_s[n] for n in rows)
        is_written = 8 in rows and index < 18
        seconds = 2 * own_s if is_written else own_s
        events.append(hand_off(now_s, seconds, rows))
        if is_written:
            events.append(interval("disk", "write", now_s, now_s + seconds + 0.5))
        now_s += seconds + 20.0
    events.append(interval("learner", "step", now_s, now_s + 0.1, update=0))
    found = recorded.training_costs(train, events)
    assert dict(found.micro_s) == pytest.approx(shapes_s, rel=0.02)
    assert found.writing.lost == pytest.approx(0.5, abs=0.02)


def test_what_a_write_takes_alone_and_beside_the_learner_is_fitted():
    events, now_s = [], 0.0
    for busy_s in (0.0, 1.0, 2.0, 1.5):
        end_s = now_s + 0.6 + 0.8 * busy_s
        events.append(interval("disk", "write", now_s, end_s))
        events.append(hand_off(now_s, busy_s, [1]))
        now_s += 30.0
    found = hand_offs.writing(events, 0.25)
    assert (found.alone_s, found.held) == (pytest.approx(0.6), pytest.approx(0.8))
    assert found.lost == 0.25
    assert hand_offs.writing([], 0.0) == Writing()


def test_a_shape_that_was_never_seen_is_as_quick_a_row_as_the_next_to_it():
    train = make(Learner__rows=8, Learner__row_shapes=4, Learner__min_fill=1.0)
    events = [hand_off(0.0, 2.0, [4]), hand_off(5.0, 2.5, [4, 1])]
    events.append(interval("learner", "step", 8.0, 8.1, update=0))
    found = recorded.training_costs(train, events)
    # What all hand-offs have alike is put down to their micro-batch of four rows.
    expected = {8: 4.0, 4: 2.0, 2: 1.0, 1: 0.5}
    assert dict(found.micro_s) == pytest.approx(expected, abs=1e-3)
    assert found.accumulate_s == pytest.approx(0.0, abs=1e-3)


def test_the_first_round_of_each_process_is_left_out(tmp_path):
    def a_round(version, start_s, seconds):
        end_s = start_s + seconds
        return [
            sample(start_s, start_s + 1.0, f"p{version}", 0, 5, version),
            interval("learner", "accumulate", start_s + 1.0, end_s - 0.5, groups=1),
            interval("learner", "step", end_s - 0.5, end_s),
            interval("publish", "publish", end_s, end_s + 0.1, version=version + 1),
        ]

    first = [*a_round(0, 0.0, 9.0), *a_round(1, 10.0, 3.0), *a_round(2, 20.0, 4.0)]
    again = {"kind": "start", "incarnation": 2, "at_s": 0.0, "unix_s": 80.0}
    later = [*a_round(3, 0.0, 8.0), *a_round(4, 10.0, 5.0)]
    path = write(tmp_path, [*first, again, *later])
    found = recorded.rounds(recorded.read(path))
    ends_s = {version: own["train_end_s"] for version, own in found.items()}
    assert ends_s == pytest.approx({1: 3.0, 2: 4.0, 4: 5.0})
    assert recorded.measured(recorded.read(path))["train_end_s"] == pytest.approx(4.0)


def test_lengths_come_by_group_in_the_order_of_their_start():
    events = [
        sample(5.0, 6.0, "late", 0, 30),
        sample(0.0, 9.0, "early", 1, 20),
        sample(0.0, 2.0, "early", 0, 10),
        sample(5.0, 7.0, "late", 1, 40),
    ]
    assert recorded.lengths(events) == ((10, 20), (30, 40))


def test_a_run_that_is_not_there_or_never_trained_is_refused(tmp_path):
    with pytest.raises(CostError, match="no events"):
        recorded.read(tmp_path)
    path = write(tmp_path, [decode(0.0, 2, 1.0, 2), sample(0.0, 1.0, "a", 0, 1)])
    train = make(Costs__source="run", Costs__path=path)
    with pytest.raises(CostError, match="must have trained, got no update"):
        recorded.costs(train)


def test_costs_of_one_run_say_what_others_take(tmp_path):
    """Other R, U, F and modes, whose own costs and lengths were never seen."""
    known = {
        "Workload__length_sigma": 0.3,
        "Simulation__rounds": 3,
        "Costs__accumulate_s": 2.0,
        "Costs__group_s": 20.0,
        "Costs__train_token_s": 0.2,
        "Costs__step_s": 1.0,
        "Costs__publish_s": 4.0,
        "Costs__report_s": 2.5,
    }
    seen = make(Pipeline__groups_per_round=8, **known)
    trace = shell_of(seen, keeps_events=True).run()
    calls = [decode(float(t), 4, 1.0, 4) for t in range(2000, 2040)]
    path = write(tmp_path, [*trace.events, *calls])
    for unseen in (
        {"Pipeline__groups_per_round": 8, "Pipeline__mode": "sync"},
        {"Pipeline__groups_per_round": 16, "Pipeline__groups_per_update": 4},
        {
            "Pipeline__groups_per_round": 8,
            "Pipeline__admission": "frontier_strict",
            "Pipeline__frontier_groups": 1,
        },
    ):
        real, _ = outcome.simulate(make(**known, **unseen), 0)
        asked = make(Simulation__rounds=3, **unseen)
        guessed, _ = outcome.simulate(fit.fitted(asked, path), 0)
        assert guessed.train_end_s == pytest.approx(real.train_end_s, rel=0.05)


def test_a_run_with_checkpoints_says_what_one_without_takes(tmp_path):
    known = {
        "Pipeline__groups_per_round": 8,
        "Workload__length_sigma": 0.3,
        "Simulation__rounds": 4,
        "Costs__accumulate_s": 5.0,
        "Costs__group_s": 40.0,
        "Costs__step_s": 1.0,
        "Costs__checkpoint_s": 2.0,
        "Costs__write_s": 30.0,
        "Costs__write_held": 0.6,
        "Costs__write_lost": 0.5,
    }
    seen = make(**known, Pipeline__groups_per_update=4, Store__checkpoint_every=1)
    trace = shell_of(seen, keeps_events=True).run()
    calls = [decode(float(t), 4, 1.0, 4) for t in range(4000, 4040)]
    path = write(tmp_path, [*trace.events, *calls])
    _, training = recorded.costs(make(Costs__source="run", Costs__path=path))
    assert training.group_s == pytest.approx(40.0, rel=0.02)
    assert training.writing.lost == pytest.approx(0.5, abs=0.03)
    assert training.writing.held == pytest.approx(0.6, abs=0.03)
    assert training.writing.alone_s == pytest.approx(30.0, rel=0.03)
    without = {"Store__checkpoint_every": 1000, "Pipeline__groups_per_update": 8}
    real, _ = outcome.simulate(make(**known, **without), 0)
    asked = make(Simulation__rounds=4, Pipeline__groups_per_round=8, **without)
    guessed, _ = outcome.simulate(fit.fitted(asked, path), 0)
    assert guessed.train_end_s == pytest.approx(real.train_end_s, rel=0.03)


def test_a_simulated_run_replays_to_itself(tmp_path):
    """Its costs are linear, so what is fitted to its events is what it was made of."""
    train = make(
        Pipeline__groups_per_round=8,
        Sampler__slots=2,
        Costs__accumulate_s=2.0,
        Costs__group_s=3.0,
        Costs__step_s=1.0,
        Costs__publish_s=4.0,
        Simulation__rounds=3,
    )
    trace = shell_of(train, keeps_events=True).run()
    # The engine's own calls, which a simulation skips: a step a second.
    calls = [decode(float(t), 2, 1.0, 2) for t in range(2000, 2040)]
    path = write(tmp_path, [*trace.events, *calls])
    found = replay.replay(train, path)
    for measured, simulated in found.values():
        # The first two samples start together, so their groups' order is a guess.
        assert simulated == pytest.approx(measured, rel=0.02)
