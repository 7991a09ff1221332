"""A run's newest numbers in Prometheus' text format, version 0.0.4."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LEDGER = "ledger/"
_STATES = ("not begun", "running", "silent", "ended")

Sample = tuple[Mapping[str, str], Any]


def text(facts: Mapping[str, Any]) -> str:
    """Every number as a gauge.

    Args:
      facts: of `watch.Watch.facts`.

    Returns:
      Lines; the run's name is a label of each sample.
    """
    run = {"run": facts["name"]}
    state, silent_s = facts["status"]["state"], facts["status"]["silent_s"]
    families: dict[str, Iterable[Sample]] = {
        "jigsaw_state": [({"state": one}, int(one == state)) for one in _STATES],
        "jigsaw_silent_seconds": [({}, silent_s)],
        "jigsaw_updates_total": [({}, facts["updates"])],
        "jigsaw_damaged_lines": [({}, facts["damaged"])],
        "jigsaw_ledger_samples": [
            ({"state": name.removeprefix(_LEDGER)}, value)
            for name, value in facts["newest"].items()
            if name.startswith(_LEDGER)
        ],
    }
    evaluation = {k: v for k, v in facts["evaluation"].items() if k[:5] == "eval/"}
    for name, value in {**evaluation, **facts["newest"]}.items():
        if not name.startswith(_LEDGER):
            # Two names that differ in a sign alone: the first one stays.
            families.setdefault(_metric_name(name), [({}, value)])
    families |= _workers(facts["workers"])
    lines = [
        line
        for name, samples in families.items()
        for line in _lines(name, samples, run)
    ]
    return "".join(f"{line}\n" for line in lines)


def _workers(workers: Iterable[Mapping[str, Any]]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {
        f"jigsaw_worker_{name}": []
        for name in ("up", "version", "heartbeat_age_seconds", "losses")
    }
    for worker in workers:
        labels = {"worker": worker["name"], "role": worker["role"]}
        values = (
            int(worker["state"] != "lost"),
            worker["version"],
            worker["age_s"],
            worker["lost"],
        )
        for samples, value in zip(found.values(), values, strict=True):
            samples.append((labels, value))
    return found


def _metric_name(name: str) -> str:
    return "jigsaw_" + re.sub(r"[^a-zA-Z0-9_]+", "_", name).strip("_")


def _lines(
    name: str, samples: Iterable[Sample], run: Mapping[str, str]
) -> Iterator[str]:
    rows = [
        f"{name}{{{_labels({**run, **labels})}}} {float(value):.17g}"
        for labels, value in samples
        if isinstance(value, int | float) and math.isfinite(value)
    ]
    if rows:
        yield f"# TYPE {name} gauge"
        yield from rows


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
