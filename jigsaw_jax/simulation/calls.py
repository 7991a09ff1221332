"""A recorded sampler's device calls, with what was in each of them."""

import bisect
import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from jigsaw_jax.store import summary

Event = dict[str, Any]
# A call that ends early has an unknown number of steps; fuller ones had them all.
_FULL = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A device call that decoded all its steps.

    Attributes:
      version: of the last completion that had begun; tells the round.
      seconds: it took.
      active: sequences in it.
      prefills: prompts that their version met for the first time.
      prompts: that entered slots.
      ended: completions that ended with the call before, where others went on.
      beside: share of it in which the learner computed.
    """

    version: int
    seconds: float
    active: int
    prefills: int
    prompts: int
    ended: int
    beside: float


def full(events: Sequence[Event], steps: int) -> list[Call]:
    """The calls of which it is known how many steps they had.

    Args:
      events: intervals of a run.
      steps: of a call.

    Returns:
      In the order of the log.
    """
    prompts: dict[float, set[str]] = collections.defaultdict(set)
    first_s: dict[tuple[str, int], float] = {}
    entered: collections.Counter[float] = collections.Counter()
    ended: collections.Counter[float] = collections.Counter()
    for event in events:
        if event["track"].startswith("slot/"):
            start_s, key = event["start_s"], (event["uid"], event["version"])
            prompts[start_s].add(event["uid"])
            first_s[key] = min(first_s.get(key, start_s), start_s)
            entered[start_s] += 1
            ended[event["end_s"]] += 1
    prefills = collections.Counter(first_s.values())
    computes = Spans(event for event in events if event["track"] == "learner")
    decoded = [event for event in events if event["name"] == "decode"]
    at = versions(events, [event["start_s"] for event in decoded])
    found, last_s = [], {}
    for version, event in zip(at, decoded, strict=True):
        start_s, end_s, active = event["start_s"], event["end_s"], event["active"]
        worker = event.get("worker")
        before_s, last_s[worker] = last_s.get(worker), end_s
        if active and event["tokens"] >= _FULL * steps * active:
            # Where nothing went on, the host had its time for what ended.
            goes_on = active > entered[start_s]
            found.append(
                Call(
                    version=version,
                    seconds=end_s - start_s,
                    active=active,
                    prefills=prefills[start_s],
                    prompts=len(prompts.get(start_s, ())),
                    ended=ended[before_s] if goes_on and before_s else 0,
                    beside=computes.share(start_s, end_s),
                )
            )
    return found


def versions(events: Sequence[Event], times_s: Sequence[float]) -> list[int]:
    """Whose completions were the last to begin by each time: which round it is.

    Args:
      events: intervals of a run.
      times_s: in seconds, on their clock.

    Returns:
      A version each, -1 before the first.
    """
    begun = sorted(
        (event["start_s"], event["version"])
        for event in events
        if event["track"].startswith("slot/")
    )
    places = [bisect.bisect_right(begun, (time_s, math.inf)) for time_s in times_s]
    return [begun[place - 1][1] if place else -1 for place in places]


class Spans:
    """When something went on.

    Args:
      events: intervals in which it did.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        spans = ((event["start_s"], event["end_s"]) for event in events)
        self._spans = summary.union(spans)

    def share(self, start_s: float, end_s: float) -> float:
        """The share of a time in which it went on."""
        if end_s <= start_s:
            return 0.0
        place = bisect.bisect_left(self._spans, (start_s,))
        near = self._spans[max(place - 1, 0) :]
        inside = itertools.takewhile(lambda span: span[0] < end_s, near)
        return summary.overlap_s([(start_s, end_s)], inside) / (end_s - start_s)
