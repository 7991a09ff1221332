"""A host joins a run that goes on, and leaves it."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests.bench.chaos import ledger, marks

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[3]


def test_a_host_that_joins_samples_and_one_that_leaves_takes_nothing_along(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.cluster.nodes", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sampler-1 is lost" in (tmp_path / "log").read_text()
    run = tmp_path / "run"
    joined = {e["track"]: e["at_s"] for e in marks(run) if e["name"] == "joined"}
    assert set(joined) == {"worker/sampler-0", "worker/sampler-1"}
    # It took work, and gave it back.
    events = (run / "events.jsonl").read_text()
    assert events.count('"track":"slot/sampler-1/') > 3
    is_exact, told = ledger(run)
    assert is_exact, told
    # Nobody else compiled anything for it.
    summary = json.loads((run / "summary.json").read_text())
    assert summary["compilations_after_warmup"] == 0
    workers = {worker["name"]: worker["restarts"] for worker in summary["workers"]}
    assert workers["learner"] == workers["sampler-0"] == 0
