"""Our lists of scorers that execute or believe anything are what junk finds."""

import json
import pathlib
import subprocess
import sys

import pytest

from jigsaw_jax.reward.reasoning_gym import EXECUTING, GULLIBLE

ROOT = pathlib.Path(__file__).parents[2]

# Throws junk at every scorer and watches, through an audit hook, which of it reaches
# Python's compiler. In a process of its own: two packages there fail strict warnings.
PROBE = r"""
import json, os, sys
from reasoning_gym import factory

SENTINEL = "sentinel_name"
JUNK = [
    "", "banana", "0", "1", "nan", "inf", "1e400", "[]", "{}", "None", "Yes", "((",
    SENTINEL, f"[{SENTINEL}]", "\u0661", "a" * 3000,
]
compiled, gullible, now = set(), set(), None


def watch(event, arguments):
    if event == "compile" and now and SENTINEL in str(arguments[0]):
        compiled.add(now)


sys.addaudithook(watch)
sink, sys.stdout = sys.stdout, sys.stderr
for task in sorted(set(factory.DATASETS) - {"composite"}):
    data = factory.create_dataset(task, size=2, seed=3)
    entry = json.loads(json.dumps(data[0]))
    now = task
    for junk in JUNK:
        if junk == entry["answer"]:
            continue
        try:
            if (data.score_answer(junk, entry) or 0) >= 1:
                gullible.add(task)
        except Exception:
            pass
    now = None
json.dump({"compiled": sorted(compiled), "gullible": sorted(gullible)}, sink)
"""


@pytest.mark.slow
def test_the_lists_name_what_junk_finds():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE],
        capture_output=True,
        cwd=ROOT,
        check=True,
        timeout=600,
    )
    found = json.loads(done.stdout)
    assert set(found["compiled"]) == EXECUTING
    assert set(found["gullible"]) == GULLIBLE
