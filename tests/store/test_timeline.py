import pytest

from jigsaw_jax.store.timeline import evenly, rounds_of, timeline


def _slot(lane, start_s, end_s, version, uid="main/0", **more):
    return {
        "kind": "interval",
        "track": f"slot/{lane:02d}",
        "name": "sample",
        "start_s": start_s,
        "end_s": end_s,
        "uid": uid,
        "draw": 0,
        "sample": 0,
        "num_tokens": 9,
        "version": version,
        "finish": "stop",
    } | more


def _interval(track, name, start_s, end_s, **more):
    own = {"kind": "interval", "track": track, "name": name}
    return own | {"start_s": start_s, "end_s": end_s} | more


# Two rounds by hand. Version 0 decodes 1-4 and 1-7; gradients 4-6 and 7-8, step 8-9,
# published 9.0-9.5. Version 1 decodes 10-12, gradient 12-13, and the log ends there.
EVENTS = [
    {"kind": "start", "incarnation": 1, "at_s": 0.0, "unix_s": 100.0},
    _slot(0, 1.0, 4.0, 0),
    _interval("learner", "accumulate", 4.0, 6.0, update=0, groups=1),
    _slot(1, 1.0, 7.0, 0, uid="main/1", finish="length"),
    _interval("learner", "accumulate", 7.0, 8.0, update=0, groups=1),
    _interval("learner", "step", 8.0, 9.0, update=0),
    _interval("publish", "publish", 9.0, 9.5, version=1),
    _slot(1, 9.5, 9.75, 1, uid="eval/main/7"),
    _slot(0, 10.0, 12.0, 1, uid="main/2"),
    _interval("learner", "accumulate", 12.0, 13.0, update=1, groups=1),
]


def test_rounds_end_when_the_next_version_is_published():
    rounds, others = rounds_of(EVENTS)
    assert [(r.version, r.start_s, r.end_s) for r in rounds] == [
        (0, 1.0, 9.5),
        (1, 10.0, 13.0),
    ]
    assert [len(r.slots) for r in rounds] == [2, 1]
    assert [len(r.learner) for r in rounds] == [3, 1]
    assert [e["track"] for e in others] == ["process", "publish", "slot/01"]


def test_facts_of_a_round_worked_by_hand():
    rounds, _ = rounds_of(EVENTS)
    assert rounds[0].waits() == [(1.0, 4.0), (6.0, 7.0)]
    assert rounds[0].facts() == {
        "first_gradient_s": 3.0,
        "train_end_s": 8.0,
        # 4 s of waiting, 4 s of work, of which 4-6 while slot 1 still decoded.
        "wait_ratio": 0.5,
        "hidden_ratio": 0.5,
        "last_token_s": 6.0,
    }
    # A synchronous round: nothing is hidden under decoding.
    assert rounds[1].facts()["hidden_ratio"] == 0
    assert rounds[1].facts()["wait_ratio"] == pytest.approx(2 / 3)


def test_a_round_without_training_has_no_facts():
    rounds, _ = rounds_of(EVENTS[:2])
    assert rounds[0].waits() == []
    assert set(rounds[0].facts().values()) == {None}


def test_rows_are_compact_milliseconds():
    shown = timeline(EVENTS)
    assert shown["lanes"] == ["slot/00", "slot/01"]
    row = shown["rounds"][0]
    assert row["groups"] == ["main/0 draw 0", "main/1 draw 0"]
    assert row["slots"] == [
        [0, 1000.0, 4000.0, 0, 0, 9, 0],
        [1, 1000.0, 7000.0, 1, 0, 9, 1],
    ]
    assert row["learner"][0] == [4000.0, 6000.0, "accumulate", 0, 1]
    assert row["waits"] == [[1000.0, 4000.0], [6000.0, 7000.0]]
    assert shown["others"][1:] == [
        [9000.0, 9500.0, "publish", "publish", "version 1", -1],
        [9500.0, 9750.0, "slot/01", "sample", "version 1", 1],
    ]
    # 5 s of work in the run, 2 of them under decoding, beside 6 s of waiting.
    assert shown["hidden_ratio"] == pytest.approx(2 / 5)
    assert shown["wait_ratio"] == pytest.approx(6 / 11)


def test_whole_rounds_are_left_out_of_a_long_run():
    events = [_slot(0, float(v), v + 0.5, v) for v in range(100)]
    shown = timeline(events, slots_max=10)
    versions = [row["version"] for row in shown["rounds"]]
    assert versions == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert shown["rounds_total"] == 100


def test_an_empty_log_has_an_empty_timeline():
    shown = timeline([])
    assert shown["rounds"] == []
    assert shown["hidden_ratio"] is None


def test_evenly_keeps_first_and_last():
    assert evenly(range(5), 9) == [0, 1, 2, 3, 4]
    assert evenly(range(11), 3) == [0, 5, 10]
    assert evenly(range(11), 1) == [10]
    assert evenly(range(11), 0) == []
