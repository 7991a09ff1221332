import itertools
import json
import os

import pytest

from jigsaw_jax.store.run_dir import RunDir
from jigsaw_jax.store.watch import EVENTS_MAX, ROUNDS_MAX, SILENT_S, Thinned, Watch
from tests.store.make_run import make_run

START = {"kind": "start", "incarnation": 1, "at_s": 10.0, "unix_s": 1000.0, "pid": 7}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


def _append(path, *records):
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def _sample(version, start_s, uid="u"):
    return {"kind": "interval", "track": "slot/00", "name": "sample", "uid": uid} | {
        "start_s": start_s,
        "end_s": start_s + 0.5,
        "version": version,
        "num_tokens": 3,
        "finish": "stop",
    }


def test_thinned_records_are_evenly_spaced_and_hold_the_newest():
    kept = Thinned(8)
    assert kept.records() == []
    for i in range(1000):
        kept.add({"i": i})
        numbers = [record["i"] for record in kept.records()]
        assert numbers[0] == 0
        assert numbers[-1] == i
        assert len(numbers) <= 9
        # The newest may be nearer than the others are to each other.
        steps = {b - a for a, b in itertools.pairwise(numbers[:-1])}
        assert len(steps) <= 1
    assert kept.total == 1000


def test_an_empty_directory_is_a_run_that_has_not_begun(run, clock):
    watch = Watch(run, clock)
    watch.refresh()
    page = watch.page()
    assert page["status"] == {"state": "not begun", "silent_s": None}
    assert page["workers"] == []
    assert page["rollouts"]["groups"] == []
    assert watch.stamp == 0


def test_a_run_is_followed_as_it_grows(run, clock):
    watch = Watch(run, clock)
    _append(run.events, START, _sample(0, 11.0))
    _append(run.metrics, {"update": 0, "reward/mean": 0.5, "ledger/ready": 3})
    watch.refresh()
    page = watch.page()
    assert page["updates"] == 1
    assert page["metrics"]["reward/mean"] == [0.5]
    assert page["newest"]["ledger/ready"] == 3
    assert [row["pid"] for row in page["workers"]] == [7]
    assert len(page["timeline"]["rounds"]) == 1
    stamp = watch.stamp
    watch.refresh()
    assert watch.stamp == stamp
    _append(run.metrics, {"update": 1, "reward/mean": 0.75})
    watch.refresh()
    assert watch.stamp == stamp + 1
    assert watch.page()["metrics"]["reward/mean"] == [0.5, 0.75]


def test_state_follows_the_log_and_the_summary(run, clock):
    watch = Watch(run, clock)
    # 11.5 on the run's clock is 1001.5 on the wall.
    _append(run.events, START, _sample(0, 11.0))
    clock.now = 1003.5
    watch.refresh()
    assert watch.page()["status"] == {"state": "running", "silent_s": 2.0}
    clock.now = 1001.5 + SILENT_S + 1
    assert watch.page()["status"]["state"] == "silent"
    run.summary.write_text("{}")
    os.utime(run.summary, (1002.0, 1002.0))
    assert watch.page()["status"]["state"] == "ended"
    _append(run.events, START | {"incarnation": 2, "unix_s": 1500.0})
    clock.now = 1501.0
    watch.refresh()
    assert watch.page()["status"]["state"] == "running"


def test_workers_have_an_age_on_the_wall_clock(run, clock):
    watch = Watch(run, clock)
    beat = {"kind": "mark", "track": "worker/s1", "name": "heartbeat", "at_s": 12.0}
    _append(run.events, START, beat | {"version": 3, "role": "sample"})
    clock.now = 1007.0
    watch.refresh()
    (row,) = watch.page()["workers"]
    assert (row["name"], row["version"], row["age_s"]) == ("s1", 3, 5.0)
    assert watch.facts()["workers"] == [row]


def test_a_resumed_run_that_cut_its_logs_is_read_anew(run, clock):
    watch = Watch(run, clock)
    _append(run.events, START, _sample(0, 11.0), _sample(1, 12.0))
    _append(run.metrics, {"update": 0}, {"update": 1}, {"update": 2})
    watch.refresh()
    run.metrics.write_text('{"update": 0}\n')
    run.events.write_text(
        json.dumps(START) + "\n" + json.dumps(_sample(0, 11.0)) + "\n"
    )
    watch.refresh()
    assert watch.page()["updates"] == 1
    assert [r["version"] for r in watch.page()["timeline"]["rounds"]] == [0]


def test_a_long_run_keeps_its_newest_rounds_alone(run, clock):
    watch = Watch(run, clock)
    per_round = EVENTS_MAX // 8
    events = [
        _sample(i // per_round, 11.0 + i, uid=f"u{i}") for i in range(10 * per_round)
    ]
    _append(run.events, START, *events)
    watch.refresh()
    rounds = watch.page()["timeline"]["rounds"]
    assert [one["version"] for one in rounds] == list(range(10 - ROUNDS_MAX, 10))
    assert all(len(one["slots"]) == per_round for one in rounds)


def test_strange_events_and_broken_lines_do_no_harm(run, clock):
    watch = Watch(run, clock)
    _append(run.events, START, {"kind": "interval"}, {"no": "kind"}, _sample(0, 11.0))
    with run.events.open("a") as file:
        file.write("broken\n")
    watch.refresh()
    page = watch.page()
    assert page["damaged"] == 3
    assert len(page["timeline"]["rounds"]) == 1


def test_a_whole_run_fits_a_page_and_shows_its_newest_rollouts(tmp_path, clock):
    path = make_run(tmp_path / "run", rounds=4, is_finished=False)
    watch = Watch(RunDir(path), clock)
    watch.refresh()
    page = watch.page()
    text = json.dumps(page, allow_nan=False)
    assert len(text) < 1_000_000
    updates = sorted(int(p.stem[7:]) for p in (path / "rollouts").glob("*.jsonl"))
    assert page["rollouts"]["updates"] == updates[-3:]
