"""What a simulated run did: its rounds, and on request every interval of it."""

import dataclasses
from typing import Any

from jigsaw_jax.records import GroupId
from jigsaw_jax.simulation.sampler import Job
from jigsaw_jax.store.summary import Interval


@dataclasses.dataclass(slots=True, kw_only=True)
class Window:
    """One round, from its first admission to the next round's.

    Attributes:
      version: of the weights that sample.
      start_s: first admission.
      end_s: the next round's first admission.
      spans: when the learner computed gradients or stepped.
      updates: steps.
      trained: groups, in the order of their training.
      sampled: tokens of each completion, by group; what was scored only.
      rewards_s: time of each of their rewards.
      publish_s: from the end of training to the next version being served.
    """

    version: int
    start_s: float
    end_s: float = 0.0
    spans: list[Interval] = dataclasses.field(default_factory=list)
    updates: int = 0
    trained: list[GroupId] = dataclasses.field(default_factory=list)
    sampled: dict[GroupId, list[int]] = dataclasses.field(default_factory=dict)
    rewards_s: dict[GroupId, list[float]] = dataclasses.field(default_factory=dict)
    publish_s: float = 0.0


class Trace:
    """Collects rounds.

    Args:
      keeps_events: whether to keep the intervals, as events.jsonl has them.

    Attributes:
      windows: rounds; the last one may be under way.
      events: intervals.
      ages: (mean, largest) staleness of each update.
      busy_s: slot-seconds that held a sequence.
      offered_s: slot-seconds of workers that were there.
    """

    def __init__(self, *, keeps_events: bool) -> None:
        self._keeps_events = keeps_events
        self.windows: list[Window] = []
        self.events: list[dict[str, Any]] = []
        self.ages: list[tuple[float, int]] = []
        self.busy_s = self.offered_s = 0.0

    def begin(self, version: int, now_s: float) -> None:
        """A round's first sample is admitted; its predecessor's window ends."""
        if self.windows:
            self.windows[-1].end_s = now_s
        self.windows.append(Window(version=version, start_s=now_s))

    def sampled(self, job: Job, lane: str, tokens: int, now_s: float) -> None:
        """A completion is back."""
        group = GroupId(job.id.uid, job.id.draw)
        self.windows[-1].sampled.setdefault(group, []).append(tokens)
        if self._keeps_events:
            self._interval(
                f"slot/{lane}",
                "sample",
                job.admitted_s if job.started_s is None else job.started_s,
                now_s,
                uid=job.id.uid,
                draw=job.id.draw,
                sample=job.id.sample,
                num_tokens=tokens,
                version=job.version,
                finish="stop",
            )

    def scored(self, group: GroupId, seconds: float) -> None:
        """A reward was asked for and takes so long."""
        self.windows[-1].rewards_s.setdefault(group, []).append(seconds)

    def learned(
        self,
        name: str,
        start_s: float,
        end_s: float,
        number: int,
        groups: tuple[GroupId, ...],
        **sizes: Any,
    ) -> None:
        """The learner has work from one time to another; `sizes` is of a gradient."""
        window = self.windows[-1] if self.windows else None
        if window is None:
            return
        if name in ("accumulate", "step"):
            window.spans.append((start_s, end_s))
        if name == "accumulate":
            window.trained += groups
        elif name == "step":
            window.updates += 1
        elif name == "publish":
            window.publish_s = end_s - start_s
        if self._keeps_events:
            tracks = {"publish": "publish", "save": "checkpoint", "write": "disk"}
            fields = {"version" if name == "publish" else "update": number}
            if groups and name == "accumulate":
                fields |= {"groups": len(groups), **sizes}
            track = tracks.get(name, "learner")
            self._interval(track, name, start_s, end_s, **fields)

    def _interval(
        self, track: str, name: str, start_s: float, end_s: float, **fields: Any
    ) -> None:
        self.events.append(
            {
                "kind": "interval",
                "track": track,
                "name": name,
                "start_s": start_s,
                "end_s": end_s,
                **fields,
            }
        )
