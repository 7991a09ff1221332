"""The timeline of the report: events by round, with the learner's waiting worked out.

A round is what one weight version sampled and what was trained before the next version
was published. Its window runs from its first completion's start to that publish.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from jigsaw_jax.store import summary
from jigsaw_jax.store.perfetto import on_one_clock

Event = dict[str, Any]
_TRAINING = ("accumulate", "step")
_BESIDE = ("checkpoint", "evaluate", "reward", "publish")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """One round's events.

    Attributes:
      version: of the weights that sampled it.
      start_s: its first completion entered a slot.
      end_s: the next version was published, or the log ends.
      slots: the completions' intervals.
      learner: the learner's intervals inside the window.
    """

    version: int
    start_s: float
    end_s: float
    slots: Sequence[Event]
    learner: Sequence[Event]

    def waits(self) -> list[summary.Interval]:
        """When the learner did nothing between the round's start and its last step."""
        trains = summary.union(_spans(self.learner))
        edges = [self.start_s, *(t for span in trains for t in span)]
        pairs = zip(edges[::2], edges[1::2], strict=False)
        return [(start, end) for start, end in pairs if end > start]

    def facts(self) -> dict[str, float | None]:
        """What the round shows, in seconds and shares; None where nothing trained."""
        trains, slots = _spans(self.learner), _spans(self.slots)
        if not trains:
            names = ("first_gradient_s", "train_end_s", "wait_ratio", "hidden_ratio")
            return dict.fromkeys(names)
        learner_s = summary.union_s(trains)
        hidden_s = summary.overlap_s(trains, slots)
        return {
            "first_gradient_s": summary.first_dispatch_s(self.start_s, trains),
            "train_end_s": summary.rollout_to_train_end_s(self.start_s, trains),
            "wait_ratio": summary.trainer_wait_ratio(self.waits(), trains),
            "hidden_ratio": hidden_s / learner_s if learner_s else None,
        } | {"last_token_s": max(end for _, end in slots) - self.start_s}


def rounds_of(events: Iterable[Event]) -> tuple[list[Round], list[Event]]:
    """Split a log into rounds.

    Args:
      events: records of events.jsonl.

    Returns:
      The rounds by version, and every other event that the timeline shows, with times
      from the first process's start.
    """
    slots: dict[int, list[Event]] = collections.defaultdict(list)
    learner: list[Event] = []
    others: list[Event] = []
    published: dict[int, float] = {}
    last_s = 0.0
    for event in on_one_clock(events):
        last_s = max(last_s, event.get("end_s", event.get("at_s", 0.0)))
        track = event["track"]
        if track.startswith("slot/"):
            if str(event.get("uid", "")).startswith("eval/"):
                others.append(event)
            else:
                slots[event["version"]].append(event)
        elif track == "learner" and event["name"] in _TRAINING:
            learner.append(event)
        elif track in (*_BESIDE, "process"):
            others.append(event)
            if track == "publish" and "end_s" in event:
                published[event["version"]] = event["end_s"]
    rounds = []
    for version, own in sorted(slots.items()):
        start_s = min(event["start_s"] for event in own)
        later = [end_s for v, end_s in published.items() if v > version]
        end_s = max([min(later, default=last_s)] + [event["end_s"] for event in own])
        inside = [e for e in learner if start_s <= e["start_s"] < end_s]
        rounds.append(
            Round(
                version=version,
                start_s=start_s,
                end_s=end_s,
                slots=own,
                learner=inside,
            )
        )
    return rounds, others


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` items at even distances, first and last among them."""
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[-most:]) if most else []
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def timeline(events: Iterable[Event], *, slots_max: int = 12_000) -> dict[str, Any]:
    """The timeline as the page's script reads it: compact rows, milliseconds.

    Args:
      events: records of events.jsonl.
      slots_max: completions to show; beyond that whole rounds are left out.

    Returns:
      {"lanes", "rounds", "others", "rounds_total", "hidden_ratio", "wait_ratio"}.
    """
    rounds, others = rounds_of(events)
    per_round = max((len(one.slots) for one in rounds), default=1)
    shown = evenly(rounds, max(1, slots_max // per_round))
    tracks = sorted({event["track"] for one in rounds for event in one.slots})
    lanes = {track: index for index, track in enumerate(tracks)}
    trains = [span for one in rounds for span in _spans(one.learner)]
    slots = [span for one in rounds for span in _spans(one.slots)]
    waits = [span for one in rounds for span in one.waits()]
    learner_s = summary.union_s(trains)
    return {
        "lanes": tracks,
        "rounds": [_round_row(one, lanes) for one in shown],
        "others": [_other_row(event, lanes) for event in evenly(others, 4_000)],
        "others_total": len(others),
        "rounds_total": len(rounds),
        "slots_total": len(slots),
        "hidden_ratio": (
            summary.overlap_s(trains, slots) / learner_s if learner_s else None
        ),
        "wait_ratio": (
            summary.trainer_wait_ratio(waits, trains) if learner_s else None
        ),
    }


def _round_row(one: Round, lanes: dict[str, int]) -> dict[str, Any]:
    groups: dict[str, int] = {}
    slots = []
    for event in one.slots:
        name = f"{event.get('uid')} draw {event.get('draw', 0)}"
        group = groups.setdefault(name, len(groups))
        tokens, is_cut = event.get("num_tokens"), event.get("finish") == "length"
        slots.append(
            [
                lanes[event["track"]],
                *_times_ms(event),
                group,
                event.get("sample"),
                tokens,
                int(is_cut),
            ]
        )
    return {
        "version": one.version,
        "start": _ms(one.start_s),
        "end": _ms(one.end_s),
        "facts": one.facts(),
        "groups": list(groups),
        "slots": slots,
        "learner": [
            [*_times_ms(e), e["name"], e.get("update"), e.get("groups")]
            for e in one.learner
        ],
        "waits": [[_ms(start), _ms(end)] for start, end in one.waits()],
    }


def _other_row(event: Event, lanes: dict[str, int]) -> list[Any]:
    is_mark = event["kind"] == "mark"
    start_s = event["at_s" if is_mark else "start_s"]
    end_s = event["at_s" if is_mark else "end_s"]
    detail = next(
        (f"{k} {event[k]}" for k in ("version", "update", "incarnation") if k in event),
        "",
    )
    row = [_ms(start_s), _ms(end_s), event["track"], event["name"], detail]
    return [*row, lanes.get(event["track"], -1)]


def _spans(events: Iterable[Event]) -> list[summary.Interval]:
    return [(event["start_s"], event["end_s"]) for event in events]


def _times_ms(event: Event) -> tuple[float, float]:
    return _ms(event["start_s"]), _ms(event["end_s"])


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
