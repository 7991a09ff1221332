"""Settings changed by name: what a policy, a scenario or `--sweep` says of a run."""

import dataclasses
import difflib
import itertools
from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any

from jigsaw_jax.settings import Train, fields

# The letters of docs/pipeline.md.
SHORT = {
    "R": "Pipeline.groups_per_round",
    "G": "Pipeline.samples_per_group",
    "K": "Pipeline.samples_per_group",
    "U": "Pipeline.groups_per_update",
    "F": "Pipeline.frontier_groups",
    "S": "Pipeline.staleness_max",
    "ADMISSION": "Pipeline.admission",
    "MODE": "Pipeline.mode",
    "SLOTS": "Sampler.slots",
    "ROWS": "Learner.rows",
    "WORKERS": "Fleet.workers",
    "SIGMA": "Workload.length_sigma",
}


def apply(train: Train, values: Mapping[str, Any]) -> Train:
    """A run with other settings; all are set at once, and then checked.

    Args:
      train: the run.
      values: by name, as "Pipeline.mode"; the letters of `SHORT` too.

    Returns:
      The changed run.

    Raises:
      ValueError: a name is unknown, or a value is of the wrong type or refused.
    """
    known = fields.flatten(train)
    named: dict[str, Any] = {}
    for name, value in values.items():
        full = SHORT.get(name, name)
        if full not in known:
            near = difflib.get_close_matches(full, [*known, *SHORT], n=1)
            fix = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{name} must be a setting of the run{fix}")
        named[full] = value
    return _replaced(train, named)


def parse_sweep(options: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Read `--sweep 'NAME=VALUE,VALUE'`.

    Args:
      options: one a name.

    Returns:
      Name to its values; a value that is no literal is text.

    Raises:
      ValueError: an option has another form, or names a setting twice.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for option in options:
        name, sign, text = option.partition("=")
        name = name.strip()
        values = tuple(_literal(part.strip()) for part in text.split(","))
        if not sign or not name or "" in values:
            raise ValueError(
                f"--sweep must be NAME=VALUE,VALUE like 'R=32,64', got {option!r}"
            )
        if SHORT.get(name, name) in {SHORT.get(other, other) for other in found}:
            raise ValueError(f"--sweep must name {name} once, got it twice")
        found[name] = values
    return found


def combinations(swept: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value a name; one empty choice where nothing is swept."""
    names = list(swept)
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*swept.values())
    ]


def _literal(text: str) -> Any:
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _replaced(settings: Any, named: Mapping[str, Any]) -> Any:
    cls = type(settings)
    changed = {}
    for name, hint in fields.hints(cls).items():
        value = getattr(settings, name)
        full = f"{cls.__name__}.{name}"
        if dataclasses.is_dataclass(value):
            inner = _replaced(value, named)
            if inner is not value:
                changed[name] = inner
        elif full in named:
            try:
                changed[name] = fields.fit(named[full], hint)
            except TypeError as error:
                raise ValueError(f"{full} {error}") from None
    return dataclasses.replace(settings, **changed) if changed else settings
