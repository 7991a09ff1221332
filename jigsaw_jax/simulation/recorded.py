"""Costs and lengths of a real run, from its events.jsonl, and what its rounds took."""

import collections
import dataclasses
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import calls, hand_offs, regression
from jigsaw_jax.simulation.cost import Decode, Line, Training
from jigsaw_jax.simulation.packing import packing_of
from jigsaw_jax.store import files, perfetto, timeline
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.run_dir import RunDir

Event = dict[str, Any]


class CostError(ValueError):
    """Costs can't be had from a file; the message is one line."""


def read(path: str | pathlib.Path) -> list[Event]:
    """The events of a run.

    Args:
      path: of its directory.

    Returns:
      The intervals of events.jsonl, from the first process's start. "life" is added:
      the number of the process that wrote it, as a run that is resumed has several.

    Raises:
      CostError: there are none.
    """
    found, life = [], 0
    try:
        # A later process of the run has another clock.
        for event in perfetto.on_one_clock(files.read_lines(RunDir(path).events)):
            if event.get("kind") == "interval":
                found.append(event | {"life": life})
            elif event.get("track") == "process":
                life += 1
    except StoreError as error:
        raise CostError(str(error)) from None
    if not found:
        raise CostError(f"{path} must be the directory of a run, got no events.jsonl")
    return found


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
    training = training_costs(train, events)
    trains = train.simulation.costs.trains
    return decode_costs(train, events), dataclasses.replace(training, trains=trains)


def decode_costs(train: Train, events: Sequence[Event]) -> Decode:
    """Fits full device calls to what was in them.

    A call takes steps x (fixed + for each active sequence), so much for each prompt
    that is prefilled and each that enters slots, for each completion that ended with
    the call before, since the host then works for it, and more while the learner
    computes.
    """
    per_call = train.sampler.steps_per_call
    full = calls.full(events, per_call)
    if not full:
        raise CostError("the recorded run must have full decode calls, got none")
    rows = [
        [per_call, per_call * c.active, c.prefills, c.prompts, c.ended, c.beside]
        for c in full
    ]
    seconds = [call.seconds for call in full]
    # Where the same number ran in all calls, the step's shape is what costs.
    found = regression.typical(rows, seconds, favours=[0])
    level = regression.level(found, rows, seconds, [call.version for call in full])
    fixed_s, sequence_s, prefill_s, insert_s, finish_s, beside_s = level * found
    tokens = max(train.simulation.workload.prompt_tokens, 1)
    middle_s = statistics.median(seconds)
    return Decode(
        # A call always takes time, even where each sequence explains all of it.
        lines=(Line(fixed_s=max(fixed_s, 1e-9), sequence_s=sequence_s),),
        prefill_token_s=prefill_s / tokens,
        calls=per_call,
        report_s=max(refill_s(events) - middle_s / 2, 0.0),
        insert_s=insert_s,
        finish_s=finish_s,
        beside=beside_s / max(middle_s - beside_s, 1e-9),
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


def training_costs(train: Train, events: Sequence[Event]) -> Training:
    """Fits hand-offs to a part for each and one for each shape of micro-batch.

    An older log has groups and perhaps tokens instead. The rest are medians. What a
    call to train waits is that from an update's last gradient to its step, which waits
    for nothing else.

    Args:
      train: whose packing the run had.
      events: of the run.

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
        raise CostError("the recorded run must have trained, got no update")

    def median_s(track: str, name: str) -> float:
        found = [_length_s(event) for event in spans[track, name]]
        return statistics.median(found) if found else 0.0

    training = Training(
        dispatch_s=_hand_off_s(taken, spans["learner", "step"]),
        step_s=median_s("learner", "step"),
        publish_s=median_s("publish", "publish"),
        checkpoint_s=median_s("checkpoint", "save"),
    )
    packing = packing_of(train)
    if all("rows" in event for event in taken):
        rows = [[*map(event["rows"].count, packing.shapes), 1] for event in taken]
        # Where all hand-offs are alike, it is the micro-batches that take the time.
        favours = range(len(packing.shapes))
        found = hand_offs.fitted(events, taken, rows, favours)
        *shapes_s, each_s = found.parts_s
        return dataclasses.replace(
            training,
            accumulate_s=each_s,
            micro_s=_shapes(packing.shapes, np.asarray(rows), shapes_s),
            packing=packing,
            beside=found.beside,
            writing=hand_offs.writing(events, found.lost),
        )
    rows = [[1, event["groups"], event.get("tokens", 0)] for event in taken]
    found = hand_offs.fitted(events, taken, rows)
    each_s, group_s, token_s = found.parts_s
    return dataclasses.replace(
        training,
        accumulate_s=each_s,
        group_s=group_s,
        token_s=token_s,
        beside=found.beside,
        writing=hand_offs.writing(events, found.lost),
    )


def _shapes(
    shapes: Sequence[int], counts: np.ndarray, shapes_s: Sequence[float]
) -> tuple[tuple[int, float], ...]:
    """(rows, seconds); one that was never seen is as quick a row as the next to it."""
    known = {
        n: seconds
        for n, seconds, count in zip(shapes, shapes_s, counts.sum(axis=0), strict=False)
        if count
    }
    near = {n: min(known, key=lambda m, n=n: abs(m - n), default=n) for n in shapes}
    return tuple((n, known.get(near[n], 0.0) * n / near[n]) for n in shapes)


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


def rounds(events: Sequence[Event]) -> dict[int, dict[str, float]]:
    """What each round of a run took, in the words of `Outcome`.

    Args:
      events: of the run.

    Returns:
      By version, its rounds but the first of each process, which warms up, where there
      are more.
    """
    names = {
        "train_end_s": "train_end_s",
        "first_dispatch_s": "first_gradient_s",
        "wait_ratio": "wait_ratio",
    }
    found = {}
    for one in timeline.rounds_of(events)[0]:
        facts = one.facts()
        if facts["train_end_s"]:
            own = {name: facts[source] or 0.0 for name, source in names.items()}
            found[one.version] = own
    cold = _cold(events)
    warm = {version: own for version, own in found.items() if version not in cold}
    return warm or found


def measured(events: Sequence[Event]) -> dict[str, float]:
    """What a typical round of a run took.

    Args:
      events: of the run.

    Returns:
      Medians of `rounds`: one that something else disturbed counts no more than
      another.
    """
    found = list(rounds(events).values())
    return {
        name: statistics.median(one[name] for one in found)
        for name in (found[0] if found else ())
    }


def _cold(events: Sequence[Event]) -> set[int]:
    """The versions with which a process began: in their rounds programs warm up."""
    first: dict[int, int] = {}
    for event in events:
        if event["track"].startswith("slot/"):
            life, version = event.get("life", 0), event["version"]
            first[life] = min(first.get(life, version), version)
    return set(first.values())


def _warm(events: list[Event]) -> list[Event]:
    """Without each process's first round; all where there is no other."""
    cold = _cold(events)
    starts_s = [event["start_s"] for event in events]
    at = dict(zip(starts_s, calls.versions(events, starts_s), strict=True))
    warm = [event for event in events if at[event["start_s"]] not in {*cold, -1}]
    trained = any(event["track"] == "learner" for event in warm)
    return warm if trained else events


def _length_s(event: Event) -> float:
    return event["end_s"] - event["start_s"]
