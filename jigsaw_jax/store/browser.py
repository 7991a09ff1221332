"""The rollouts that the report shows: groups with their members, cut to a size."""

import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from jigsaw_jax.store import files
from jigsaw_jax.store.timeline import evenly

UPDATES_MAX = 60
GROUPS_MAX = 24
# Trained groups shown for each dropped one, as long as there are both.
TRAINED_PER_DROPPED = 3
TEXT_MAX = 6_000
TOKENS_MAX = 1_200
_NAME = re.compile(r"update-(\d+)(\.dropped)?\.jsonl")


def shown_groups(directory: pathlib.Path, *, bytes_max: int) -> dict[str, Any]:
    """Groups of evenly spaced updates, first and last among them.

    Args:
      directory: a run's rollouts/.
      bytes_max: of all groups together, as JSON.

    Returns:
      {"groups": [...], "updates": shown ones, "updates_total", "groups_cut": groups
      left out of the updates that are shown}.
    """
    paths = sorted(path for path in directory.glob("*.jsonl") if _NAME.match(path.name))
    shown = evenly(paths, UPDATES_MAX)
    share = bytes_max // max(1, len(shown))
    groups: list[dict[str, Any]] = []
    cut = 0
    for path in shown:
        found = _mixed(group_rows(files.read_lines(path)))
        kept = _within(found[:GROUPS_MAX], share)
        cut += len(found) - len(kept)
        groups += kept
    return {
        "groups": groups,
        "updates": sorted({group["update"] for group in groups}),
        "updates_total": len({path.name.partition(".")[0] for path in paths}),
        "groups_cut": cut,
    }


def newest_groups(
    directory: pathlib.Path, *, updates: int, bytes_max: int
) -> dict[str, Any]:
    """Groups of the last updates that were written, as `shown_groups` gives them."""
    paths = sorted(path for path in directory.glob("*.jsonl") if _NAME.match(path.name))
    # An update may have more than one file.
    newest = sorted({path.name.partition(".")[0] for path in paths})[-updates:]
    groups: list[dict[str, Any]] = []
    for path in paths:
        if path.name.partition(".")[0] not in newest:
            continue
        found = group_rows(files.read_lines(path))[:GROUPS_MAX]
        groups += _within(found, bytes_max // updates)
    return {
        "groups": groups,
        "updates": sorted({group["update"] for group in groups}),
    }


def group_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join rows of one file to groups, in the order in which groups begin."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["update"], row["uid"], row["draw"])
        if key not in groups:
            names = ("update", "uid", "draw", "task", "prompt", "answer", "dropped")
            groups[key] = {name: row.get(name) for name in names}
            groups[key]["prompt"] = _short(row.get("prompt") or "")
            groups[key]["members"] = []
        groups[key]["members"].append(_member(row))
    return list(groups.values())


def _mixed(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trained and dropped groups in turns, so that a cut leaves some of both."""
    dropped = [group for group in groups if group["dropped"]]
    mixed: list[dict[str, Any]] = []
    trained = [group for group in groups if not group["dropped"]]
    for index, group in enumerate(trained, start=1):
        mixed.append(group)
        if index % TRAINED_PER_DROPPED == 0 and dropped:
            mixed.append(dropped.pop(0))
    return mixed + dropped


def _member(row: dict[str, Any]) -> dict[str, Any]:
    sampled = [segment for segment in row["segments"] if segment["is_sampled"]]
    versions = [version for segment in sampled for version in segment["versions"]]
    member = {
        "sample": row["sample"],
        "reward": row["reward"],
        "parts": row.get("parts") or {},
        "finish": row.get("finish"),
        "failure": row.get("failure"),
        "advantage": row.get("advantage"),
        "num": len(versions),
        "versions": sorted({min(versions), max(versions)}) if versions else [],
        "text": _short(row.get("text") or ""),
    }
    ids, logprobs = [], []
    for segment in row["segments"]:
        ids += segment["tokens"]
        own = segment["logprobs"] or [None] * len(segment["tokens"])
        logprobs += [value if value is None else round(value, 3) for value in own]
    member |= {"ids": ids[:TOKENS_MAX], "logprobs": logprobs[:TOKENS_MAX]}
    if row.get("pieces"):
        member["pieces"] = row["pieces"][:TOKENS_MAX]
    return member


def _short(text: str) -> str:
    if len(text) <= TEXT_MAX:
        return text
    return text[:TEXT_MAX] + f" [{len(text) - TEXT_MAX} more characters]"


def _within(groups: list[dict[str, Any]], bytes_max: int) -> list[dict[str, Any]]:
    """The first groups that fit; at least one, so that no shown update is empty."""
    kept: list[dict[str, Any]] = []
    size = 0
    for group in groups:
        size += len(json.dumps(group))
        if kept and size > bytes_max:
            break
        kept.append(group)
    return kept
