"""A simulated run as a run directory, so that its timeline draws as a real one's."""

import dataclasses
import json
import pathlib
import re

from jigsaw_jax.simulation.outcome import Outcome
from jigsaw_jax.simulation.trace import Trace
from jigsaw_jax.store import files, page
from jigsaw_jax.store.run_dir import RunDir


def write(folder: pathlib.Path, name: str, outcome: Outcome, trace: Trace) -> str:
    """Write events.jsonl, summary.json and report.html of a simulated run.

    Args:
      folder: that holds one directory a run.
      name: of the run; its letters and digits name the directory.
      outcome: its numbers.
      trace: what happened, with its events.

    Returns:
      The path of the page.

    Raises:
      StoreError: it can't be written.
    """
    plain = re.sub(r"[^\w.+=-]+", "_", name).strip("_")
    run = RunDir(folder / plain)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.StoreError(
            f"cannot write {run.path}: {error.strerror or error}"
        ) from error
    start = {"kind": "start", "incarnation": 1, "at_s": 0.0, "unix_s": 0.0}
    lines = "".join(f"{json.dumps(event)}\n" for event in [start, *trace.events])
    files.write_text(run.events, lines)
    run.write_summary({"simulated": name, **dataclasses.asdict(outcome)})
    page.write(run)
    return str(run.report)
