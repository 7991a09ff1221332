import errno
import os
import subprocess
import sys

import pytest

from jigsaw_jax.store import files
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.journal import EventLog
from jigsaw_jax.store.metrics import MetricsLog
from jigsaw_jax.store.run_dir import RunDir

HOLD = """
import sys
from jigsaw_jax.store.run_dir import RunDir
run = RunDir(sys.argv[1])
run.lock()
print(run.incarnation, flush=True)
sys.stdin.read()
"""


def _hold(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_two_processes_cannot_use_one_directory_and_a_dead_one_is_no_obstacle(tmp_path):
    process, incarnation = _hold(tmp_path / "run")
    assert incarnation == 1
    run = RunDir(tmp_path / "run")
    with pytest.raises(StoreError, match=f"in use by process {process.pid};"):
        run.lock()
    process.kill()
    process.communicate()
    run.lock()
    assert run.incarnation == 2
    run.unlock()


def test_a_directory_can_be_seen_to_be_free_and_stays_as_it_is(tmp_path):
    run = RunDir(tmp_path / "run")
    run.check_free()
    assert not run.path.exists()
    process, _ = _hold(run.path)
    with pytest.raises(StoreError, match=f"in use by process {process.pid};"):
        run.check_free()
    process.kill()
    process.communicate()
    run.check_free()
    run.lock()
    assert run.incarnation == 2
    run.unlock()


def test_the_lock_is_reentrant_and_counts_incarnations(tmp_path):
    run = RunDir(tmp_path)
    run.lock()
    run.lock()
    assert run.incarnation == 1
    with pytest.raises(StoreError, match="in use"):
        RunDir(tmp_path).lock()
    run.unlock()
    run.lock()
    assert run.incarnation == 2
    run.unlock()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write run directory"):
        RunDir(tmp_path / "file" / "run").lock()


def test_resume_leaves_one_record_an_update_and_loses_none(tmp_path):
    run = RunDir(tmp_path)
    log = MetricsLog(run.metrics)
    for update in range(3):
        log.record(update, {"x": update})
    offsets = run.offsets(log)
    for update in range(3, 5):
        log.record(update, {"x": update})
    log.close()
    with run.metrics.open("a") as file:
        file.write('{"update": 5, "x')

    assert run.rewind(offsets) > 0
    log = MetricsLog(run.metrics)
    assert log.last_update == 2
    for update in range(3, 6):
        log.record(update, {"x": 10 * update})
    log.close()
    rows = list(files.read_lines(run.metrics))
    assert [row["update"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["x"] for row in rows] == [0, 1, 2, 30, 40, 50]
    rewound = (tmp_path / "metrics.rewound.jsonl").read_text()
    assert rewound.splitlines() == [
        '{"update": 3, "x": 3}',
        '{"update": 4, "x": 4}',
        '{"update": 5, "x',
    ]


def test_without_a_checkpoint_everything_is_set_aside(tmp_path):
    run = RunDir(tmp_path)
    log = MetricsLog(run.metrics)
    log.record(0, {})
    log.close()
    run.rewind({})
    assert run.metrics.read_bytes() == b""
    log = MetricsLog(run.metrics)
    assert log.last_update == -1
    log.close()


def test_offsets_count_events_that_were_still_queued(tmp_path):
    run = RunDir(tmp_path)
    log = EventLog(run.events, incarnation=1, at_s=0.0, unix_s=0.0)
    log.mark("publish", "version", 1.0)
    offsets = run.offsets(log)
    log.mark("publish", "version", 2.0)
    log.close()
    run.rewind(offsets)
    assert [e.get("at_s") for e in files.read_lines(run.events)] == [0.0, 1.0]


def test_summary_and_config_are_written(tmp_path):
    run = RunDir(tmp_path)
    run.write_config("Train.updates = 3\n")
    run.write_summary({"updates": 3, "mean": float("nan"), "max": float("inf")})
    assert run.config.read_text() == "Train.updates = 3\n"
    assert files.read_json(run.summary) == {"updates": 3, "mean": None, "max": None}


def test_a_disk_that_is_full_at_the_lock_is_said_in_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match="No space left on device"):
        RunDir(tmp_path).lock()
    monkeypatch.undo()
    RunDir(tmp_path).lock()
