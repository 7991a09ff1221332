"""A host joins a run that goes on, and leaves it."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests.bench.chaos import ledger, marks

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[3]


def play(folder, scenario):
    """The run's output and summary; its ledger is exact."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.cluster.nodes", str(folder), scenario],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    is_exact, told = ledger(folder / "run")
    assert is_exact, told
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return (folder / "log").read_text(), summary


def restarts(summary):
    return {worker["name"]: worker["restarts"] for worker in summary["workers"]}


def test_a_host_that_joins_samples_and_one_that_leaves_takes_nothing_along(tmp_path):
    log, summary = play(tmp_path, "visit")
    assert "sampler-1 is lost" in log
    run = tmp_path / "run"
    joined = {e["track"]: e["at_s"] for e in marks(run) if e["name"] == "joined"}
    assert set(joined) == {"worker/sampler-0", "worker/sampler-1"}
    # It took work, and gave it back.
    events = (run / "events.jsonl").read_text()
    assert events.count('"track":"slot/sampler-1/') > 3
    # Nobody else compiled anything for it.
    assert summary["compilations_after_warmup"] == 0
    workers = restarts(summary)
    assert workers["learner"] == workers["sampler-0"] == 0


def test_a_life_that_begins_without_any_sampler_takes_a_host_that_joins(tmp_path):
    log, summary = play(tmp_path, "swap")
    waits = log.index("sampler-0 is lost, and its host: ")
    assert log.index("starting another learner") < waits < log.rindex("\nupdate ")
    assert restarts(summary)["learner"] == 1
