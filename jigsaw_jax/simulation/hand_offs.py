"""Costs of the learner's hand-offs, from a recorded run in which others were at work.

Beside a sampler that decodes, and beside a checkpoint that is written, a hand-off takes
longer than alone:

    (its parts) x (1 + beside x share in which it was decoded)
                / (1 - lost x share in which a checkpoint was written)

A run in which the largest micro-batches come only behind checkpoints, where groups
gather, would else show them as slow as that made them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jigsaw_jax.simulation import calls, regression
from jigsaw_jax.simulation.writing import Writing

Event = dict[str, Any]
# Hand-offs tell what others cost them by the share of their time in which those are at
# work, where it differs by this much.
_APART = 0.3
# What `beside` and `lost` may be.
_BESIDE = [0.01 * percent for percent in range(101)]
_LOST = [0.01 * percent for percent in range(91)]
# A write that lost all of its speed would never end.
_HELD_MAX = 0.95
# How often each of the two is sought, given the other.
_TURNS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandOffs:
    """What was found.

    Attributes:
      parts_s: of each part, alone.
      beside: share by which they take longer while samplers decode.
      lost: share of the learner's speed that goes while a checkpoint is written.
    """

    parts_s: list[float]
    beside: float
    lost: float


def fitted(
    events: Sequence[Event],
    taken: Sequence[Event],
    rows: Sequence[Sequence[float | int]],
    favours: Sequence[int] = (),
) -> HandOffs:
    """Fits hand-offs to their parts, by least absolute residuals.

    Args:
      events: intervals of a run.
      taken: its hand-offs.
      rows: the parts of each.
      favours: as `regression.typical` takes them.

    Returns:
      Costs that give the sum of a typical round.
    """
    seconds = [event["end_s"] - event["start_s"] for event in taken]
    decoded = _shares(taken, (e for e in events if e["name"] == "decode"))
    written = _shares(taken, _writes(events))

    def felt(beside: float, lost: float) -> list[list[float]]:
        return [
            [(1 + beside * mine) / (1 - lost * other) * part for part in own]
            for own, mine, other in zip(rows, decoded, written, strict=True)
        ]

    def distance(beside: float, lost: float) -> float:
        return regression.distance(felt(beside, lost), seconds, favours)

    beside = lost = 0.0
    for _ in range(_TURNS):
        lost = _least(written, _LOST, lambda one, own=beside: distance(own, one))
        beside = _least(decoded, _BESIDE, lambda one, own=lost: distance(one, own))
    found = regression.typical(felt(beside, lost), seconds, favours)
    rounds = calls.versions(events, [event["start_s"] for event in taken])
    level = regression.level(found, felt(beside, lost), seconds, rounds)
    return HandOffs(
        parts_s=[float(part_s) for part_s in found * level], beside=beside, lost=lost
    )


def writing(events: Sequence[Event], lost: float) -> Writing:
    """Fits what writing a checkpoint takes.

    Beside a learner that computes it takes longer: alone_s + held x the time in which
    that does.

    Args:
      events: intervals of a run; an older log has no writes.
      lost: as `fitted` found it.

    Returns:
      The costs.
    """
    written = _writes(events)
    if not written:
        return Writing()
    seconds = [event["end_s"] - event["start_s"] for event in written]
    shares = _shares(written, (e for e in events if e["track"] == "learner"))
    beside_s = [all_s * share for all_s, share in zip(seconds, shares, strict=True)]
    alone_s, held = regression.typical([[1, own_s] for own_s in beside_s], seconds)
    if held > _HELD_MAX:
        held = _HELD_MAX
        both = zip(seconds, beside_s, strict=True)
        left_s = [all_s - held * own_s for all_s, own_s in both]
        (alone_s,) = regression.typical([[1]] * len(left_s), left_s)
    return Writing(alone_s=float(alone_s), held=float(held), lost=lost)


def _least(
    shares: Sequence[float], values: Sequence[float], distance: Callable[[float], float]
) -> float:
    """The value of the least distance; none where all hand-offs are alike."""
    if max(shares) - min(shares) < _APART:
        return 0.0
    return min(values, key=distance)


def _writes(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["track"] == "disk"]


def _shares(taken: Sequence[Event], others: Iterable[Event]) -> list[float]:
    """The share of each of them in which others went on."""
    spans = calls.Spans(others)
    return [spans.share(event["start_s"], event["end_s"]) for event in taken]
