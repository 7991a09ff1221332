"""report.html: a run directory as one self-contained page.

The page is a template, a style sheet and scripts from `html/` with the run's numbers
as one JSON object between them. What a model wrote reaches the page as JSON strings
and the document as text nodes only; a content security policy without any source
keeps the page off the network even so.
"""

import datetime
import importlib.resources
import json
import math
from typing import Any

from jigsaw_jax.store import browser, files
from jigsaw_jax.store.run_dir import RunDir
from jigsaw_jax.store.timeline import evenly, timeline

SCRIPTS = ("dom.js", "charts.js", "timeline.js", "rollouts.js", "page.js")
POINTS_MAX = 2_000
ROLLOUT_BYTES_MAX = 2_500_000


def write(run: RunDir) -> None:
    """Write the report of a run, finished or not, to `run.report`.

    Args:
      run: its directory.

    Raises:
      StoreError: if the directory holds no run, or a file of it is damaged.
    """
    if not any(path.exists() for path in (run.metrics, run.events, run.summary)):
        raise files.StoreError(
            f"{run.path} must be a run directory, got no metrics.jsonl, events.jsonl "
            "or summary.json there"
        )
    files.write_text(run.report, html(page_data(run)))


def html(data: dict[str, Any]) -> str:
    """Put the template, style, scripts and data together."""
    folder = importlib.resources.files("jigsaw_jax.store") / "html"
    parts = {
        "STYLE": (folder / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": "\n".join(
            (folder / name).read_text(encoding="utf-8") for name in SCRIPTS
        ),
        "DATA": embedded(data),
    }
    page = (folder / "page.html").read_text(encoding="utf-8")
    # Split first, so that a marker inside the data is never taken for one.
    pieces = page.split("%%")
    return "".join(parts.get(piece, piece) for piece in pieces)


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element whatever its strings hold."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(run: RunDir) -> dict[str, Any]:
    """Everything that the page shows, small enough to embed."""
    records = list(files.read_lines(run.metrics))
    shown_records = evenly(records, POINTS_MAX)
    evaluations = _evaluations(run, records)
    lines = timeline(files.read_lines(run.events))
    rollouts = browser.shown_groups(run.rollouts, bytes_max=ROLLOUT_BYTES_MAX)
    summary = files.read_json(run.summary) if run.summary.exists() else None
    config = run.config.read_text(encoding="utf-8") if run.config.exists() else ""
    return {
        "name": run.path.resolve().name,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "summary": summary,
        "config": config[:100_000],
        "metrics": columns(shown_records),
        "updates_total": len(records),
        "evaluations": evaluations,
        "timeline": lines,
        "rollouts": rollouts,
        "left_out": _left_out(len(records), len(shown_records), lines, rollouts),
    }


def _evaluations(run: RunDir, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy by updates done, from evaluations.jsonl and from update records."""
    found = [dict(row) for row in files.read_lines(run.evaluations)]
    for record in records:
        own = {name: v for name, v in record.items() if name.startswith("eval/")}
        if own:
            found.append({"updates": record["update"] + 1, **own})
    return sorted(found, key=lambda row: row["updates"])


def columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Records as columns of numbers, six digits each, None where one has none."""
    names = dict.fromkeys(name for record in records for name in record)
    return {
        name: [_number(record.get(name)) for record in records]
        for name in names
        if any(_number(record.get(name)) is not None for record in records)
    }


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(f"{value:.6g}") if is_number else None


def _left_out(
    updates: int, points: int, lines: dict[str, Any], rollouts: dict[str, Any]
) -> list[str]:
    """One sentence for everything that the run holds and the page does not."""
    said = []
    if points < updates:
        said.append(f"Curves show {points} of {updates} updates, evenly spaced.")
    rounds = len(lines["rounds"])
    if rounds < lines["rounds_total"]:
        said.append(f"The timeline shows {rounds} of {lines['rounds_total']} rounds.")
    if len(lines["others"]) < lines["others_total"]:
        shown, total = len(lines["others"]), lines["others_total"]
        said.append(f"The timeline shows {shown} of {total} marks beside the rounds.")
    updates_shown = len(rollouts["updates"])
    if updates_shown < rollouts["updates_total"] or rollouts["groups_cut"]:
        said.append(
            f"Rollouts are of {updates_shown} of {rollouts['updates_total']} updates, "
            f"without {rollouts['groups_cut']} of their groups; all are in rollouts/."
        )
    return said
