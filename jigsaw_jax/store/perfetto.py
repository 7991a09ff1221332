"""events.jsonl as a Chrome trace, which ui.perfetto.dev and chrome://tracing open."""

import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from jigsaw_jax.store import files

_TRACK_ORDER = (
    "process",
    "round",
    "learner",
    "sampler",
    "publish",
    "reward",
    "checkpoint",
    "disk",
    "evaluate",
)
_OWN_FIELDS = {"kind", "track", "name", "start_s", "end_s", "at_s"}


def export(events_path: pathlib.Path, out_path: pathlib.Path) -> int:
    """Write the trace.

    Args:
      events_path: of an events.jsonl, finished or not.
      out_path: of the JSON file to write.

    Returns:
      How many trace events it holds, track names not counted.

    Raises:
      StoreError: if events.jsonl is damaged or the trace cannot be written.
    """
    events = list(files.read_lines(events_path))
    trace = chrome_trace(events)
    files.write_text(out_path, json.dumps({"traceEvents": trace}) + "\n")
    return sum(event["ph"] != "M" for event in trace)


def chrome_trace(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trace events: names of tracks, then intervals and marks, in microseconds.

    Each process of the run has its own clock; `on_one_clock` joins them.
    """
    shifted = list(on_one_clock(events))
    tracks = sorted({event["track"] for event in shifted}, key=track_key)
    thread = {track: index + 1 for index, track in enumerate(tracks)}
    trace = []
    for track, tid in thread.items():
        common = {"ph": "M", "pid": 1, "tid": tid}
        trace.append({**common, "name": "thread_name", "args": {"name": track}})
        trace.append(
            {**common, "name": "thread_sort_index", "args": {"sort_index": tid}}
        )
    for event in shifted:
        args = {k: v for k, v in event.items() if k not in _OWN_FIELDS}
        row = {
            "name": event["name"],
            "pid": 1,
            "tid": thread[event["track"]],
            "args": args,
        }
        if event["kind"] == "interval":
            start_us, end_us = event["start_s"] * 1e6, event["end_s"] * 1e6
            # Rounded ends, not rounded lengths: touching intervals keep touching.
            start_us, end_us = round(start_us, 3), round(end_us, 3)
            row |= {"ph": "X", "ts": start_us, "dur": round(end_us - start_us, 3)}
        else:
            row |= {"ph": "i", "s": "t", "ts": round(event["at_s"] * 1e6, 3)}
        trace.append(row)
    return trace


def on_one_clock(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Put the times of all processes of a run on one clock, zero at the first's start.

    Args:
      events: records of an events.jsonl in the order of the file.

    Returns:
      Intervals and marks; the start of each process is a mark on track "process".
    """
    clock = OneClock()
    return map(clock.on, events)


class OneClock:
    """Turns events into the same events on the clock of the run's first process.

    Attributes:
      origin_s: that process's start, seconds since 1970; None before it is known.
    """

    def __init__(self) -> None:
        self.origin_s: float | None = None
        self._shift_s = 0.0

    def on(self, event: dict[str, Any]) -> dict[str, Any]:
        """The next event of the file; a process's start becomes a mark."""
        if event["kind"] == "start":
            if self.origin_s is None:
                self.origin_s = event["unix_s"]
            self._shift_s = event["unix_s"] - event["at_s"] - self.origin_s
            mark = {"kind": "mark", "track": "process", "name": "start"}
            number = event["incarnation"]
            return mark | {"at_s": event["at_s"] + self._shift_s, "incarnation": number}
        if event["kind"] == "interval":
            start_s, end_s = event["start_s"], event["end_s"]
            return event | {
                "start_s": start_s + self._shift_s,
                "end_s": end_s + self._shift_s,
            }
        return event | {"at_s": event["at_s"] + self._shift_s}


def track_key(track: str) -> tuple[int, str]:
    """Sort key: the pipeline's tracks in reading order, then slots by number."""
    if track in _TRACK_ORDER:
        return _TRACK_ORDER.index(track), ""
    head, _, number = track.partition("/")
    return len(_TRACK_ORDER), f"{head}/{number:>9}"
