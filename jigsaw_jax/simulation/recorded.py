"""Costs and lengths of a real run, from its events.jsonl, and what its rounds took."""

import collections
import dataclasses
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from jigsaw_jax.settings import Train
from jigsaw_jax.simulation.cost import Decode, Line, Training
from jigsaw_jax.store import files, perfetto, timeline
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.run_dir import RunDir

Event = dict[str, Any]
# A call that ends early has an unknown number of steps; fuller ones had them all.
_FULL = 0.5
_FAVOUR = 1e4


class CostError(ValueError):
    """Costs can't be had from a file; the message is one line."""


def read(path: str | pathlib.Path) -> list[Event]:
    """The events of a run.

    Args:
      path: of its directory.

    Returns:
      The intervals of events.jsonl, from the first process's start.

    Raises:
      CostError: there are none.
    """
    try:
        # A later process of the run has another clock.
        events = list(perfetto.on_one_clock(files.read_lines(RunDir(path).events)))
        events = [event for event in events if event.get("kind") == "interval"]
    except StoreError as error:
        raise CostError(str(error)) from None
    if not events:
        raise CostError(f"{path} must be the directory of a run, got no events.jsonl")
    return events


def costs(train: Train) -> tuple[Decode, Training]:
    """Costs fitted to the run that `Costs.path` names.

    Args:
      train: whose `Sampler.steps_per_call` the recorded run had.

    Returns:
      Of a worker and of the learner.

    Raises:
      CostError: the run is not there or has no whole round.
    """
    path = train.simulation.costs.path
    assert path is not None
    events = _warm(read(path))
    training = training_costs(events, path)
    trains = train.simulation.costs.trains
    return decode_costs(train, events), dataclasses.replace(training, trains=trains)


def decode_costs(train: Train, events: Sequence[Event]) -> Decode:
    """Fits calls to steps x (fixed + for each active sequence) + for each prompt."""
    calls, starts = train.sampler.steps_per_call, _prompts_at(events)
    rows, seconds = [], []
    for event in events:
        if event["name"] != "decode":
            continue
        active = event["active"]
        if not active or event["tokens"] < _FULL * calls * active:
            continue
        prompts = len(starts.get(event["start_s"], ()))
        rows.append([calls, calls * active, prompts])
        seconds.append(_length_s(event))
    if not rows:
        raise CostError("the recorded run must have full decode calls, got none")
    # Where the same number ran in all calls, the step's shape is what costs.
    fixed_s, sequence_s, prompt_s = _least_squares(rows, seconds, favours=0)
    # A call always takes time, even where each sequence explains all of it.
    fixed_s = max(fixed_s, 1e-9)
    tokens = max(train.simulation.workload.prompt_tokens, 1)
    return Decode(
        lines=(Line(fixed_s=fixed_s, sequence_s=sequence_s),),
        prefill_token_s=prompt_s / tokens,
        calls=calls,
        report_s=max(refill_s(events) - statistics.median(seconds) / 2, 0.0),
    )


def refill_s(events: Sequence[Event]) -> float:
    """Median time for which a slot stays free between two completions of a version.

    It ends with the start of a device call, so the news of an end takes half a call
    less than that, in the mean.
    """
    ends: dict[tuple[str, int], float] = {}
    found = []
    slots = [event for event in events if event["track"].startswith("slot/")]
    for event in sorted(slots, key=lambda event: event["start_s"]):
        slot = event["track"], event["version"]
        if slot in ends:
            found.append(event["start_s"] - ends[slot])
        ends[slot] = event["end_s"]
    return statistics.median(found) if found else 0.0


def prompt_tokens(events: Sequence[Event]) -> int | None:
    """Mean length of the prompts that trained; None of an older log, without it."""
    taken = [event for event in events if "prompt_tokens" in event]
    groups = sum(event["groups"] for event in taken)
    return round(sum(e["prompt_tokens"] for e in taken) / groups) if groups else None


def training_costs(events: Sequence[Event], path: str) -> Training:
    """Fits hand-offs to a part for each, for each group and for each token.

    Steps, publishes and checkpoints are means. What a call to train waits is the median
    time from an update's last gradient to its step, which waits for nothing else.

    Args:
      events: of the run.
      path: of it, for errors.

    Returns:
      The learner's work.

    Raises:
      CostError: nothing trained.
    """
    spans = collections.defaultdict(list)
    for event in events:
        spans[event["track"], event["name"]].append(event)
    taken = spans["learner", "accumulate"]
    if not taken or not spans["learner", "step"]:
        raise CostError(f"{path} must hold a run that has trained, got no update")
    # A log of before there were tokens has none.
    rows = [[1, event["groups"], event.get("tokens", 0)] for event in taken]
    fitted = _least_squares(rows, [_length_s(e) for e in taken])

    def mean_s(track: str, name: str) -> float:
        found = [_length_s(event) for event in spans[track, name]]
        return float(np.mean(found)) if found else 0.0

    return Training(
        accumulate_s=fitted[0],
        group_s=fitted[1],
        token_s=fitted[2],
        dispatch_s=_hand_off_s(taken, spans["learner", "step"]),
        step_s=mean_s("learner", "step"),
        publish_s=mean_s("publish", "publish"),
        checkpoint_s=mean_s("checkpoint", "save"),
    )


def _hand_off_s(taken: Sequence[Event], steps: Sequence[Event]) -> float:
    ends: dict[int, float] = {}
    for event in taken:
        update = event.get("update", -1)
        ends[update] = max(ends.get(update, 0.0), event["end_s"])
    gaps = [
        step["start_s"] - ends[step["update"]]
        for step in steps
        if step.get("update") in ends
    ]
    return max(statistics.median(gaps), 0.0) if gaps else 0.0


def lengths(events: Sequence[Event]) -> tuple[tuple[int, ...], ...]:
    """Sampled tokens of each completion, by group in the order of their start.

    Args:
      events: of the run.

    Returns:
      One tuple a group; evaluation's are left out.
    """
    groups: dict[tuple[str, int], dict[int, int]] = {}
    rounds, _ = timeline.rounds_of(events)
    for one in rounds:
        for event in sorted(one.slots, key=lambda event: event["start_s"]):
            group = groups.setdefault((event["uid"], event["draw"]), {})
            group[event["sample"]] = event["num_tokens"]
    return tuple(
        tuple(tokens for _, tokens in sorted(own.items())) for own in groups.values()
    )


def measured(events: Sequence[Event]) -> dict[str, float]:
    """What the rounds of a run took, in the words of `Outcome`.

    Args:
      events: of the run.

    Returns:
      Means over its rounds but the first, which warms up, where there are more.
    """
    rounds, _ = timeline.rounds_of(events)
    facts = [facts for one in rounds if (facts := one.facts())["train_end_s"]]
    facts = facts[1:] or facts
    names = {
        "train_end_s": "train_end_s",
        "first_dispatch_s": "first_gradient_s",
        "wait_ratio": "wait_ratio",
    }
    return {
        name: float(np.mean([one[source] or 0.0 for one in facts]))
        for name, source in names.items()
        if facts
    }


def _warm(events: list[Event]) -> list[Event]:
    """Without the first round, in which programs compile; all where it is the only."""
    starts_s = [
        event["start_s"]
        for event in events
        if event["track"].startswith("slot/") and event["version"] > 0
    ]
    start_s = min(starts_s, default=0.0)
    warm = [event for event in events if event["start_s"] >= start_s]
    trained = any(event["track"] == "learner" for event in warm)
    return warm if trained else events


def _prompts_at(events: Sequence[Event]) -> dict[float, set[str]]:
    """Start of a call to the prompts that entered with it."""
    found: dict[float, set[str]] = collections.defaultdict(set)
    for event in events:
        if event["track"].startswith("slot/"):
            found[event["start_s"]].add(event["uid"])
    return found


def _length_s(event: Event) -> float:
    return event["end_s"] - event["start_s"]


def _least_squares(
    rows: Sequence[Sequence[int]], seconds: Sequence[float], favours: int | None = None
) -> list[float]:
    """Coefficients that are not negative: the most negative one is fixed at 0.

    Where several columns explain the same, the one that is favoured does, or the
    largest.
    """
    matrix = np.asarray(rows, float)
    if favours is not None:
        # The least norm is sought, in which its coefficient then hardly counts.
        matrix[:, favours] *= _FAVOUR
    kept = list(range(matrix.shape[1]))
    found = np.zeros(matrix.shape[1])
    while kept:
        values, *_ = np.linalg.lstsq(matrix[:, kept], np.asarray(seconds), rcond=None)
        if values.min() >= 0:
            found[kept] = values
            break
        kept.pop(int(values.argmin()))
    if favours is not None:
        found[favours] *= _FAVOUR
    return [float(value) for value in found]
