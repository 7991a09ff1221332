"""Who works on a run, as its event log tells: roles, versions, heartbeats, losses."""

import dataclasses
from collections.abc import Mapping
from typing import Any

PREFIX = "worker/"
# What a mark's name makes of its worker; other names only show that it lives.
_STATES = {"hired": "starting", "loaded": "starting", "leaving": "leaving"}
_OVER = ("lost", "left")


@dataclasses.dataclass
class Worker:
    """One worker as last heard of.

    name: stays over its lives.
    role: "sample", "train", or as the log says.
    state: "starting", "working", "leaving" or "lost".
    version: of its weights; None where unknown.
    pid: of its process; None where unknown.
    incarnation: counts its lives.
    heard_s: wall time of its last sign, seconds since 1970.
    lost: how often it was lost.
    reason: of the last loss.
    """

    name: str
    role: str = ""
    state: str = "working"
    version: int | None = None
    pid: int | None = None
    incarnation: int = 1
    heard_s: float = 0.0
    lost: int = 0
    reason: str = ""


class Workers:
    """Follows marks on tracks `worker/NAME`; tolerant of fields that are missing.

    A run of one process logs none of them: `single` then says what is known of it.
    """

    def __init__(self) -> None:
        self._known: dict[str, Worker] = {}
        self._process: Mapping[str, Any] = {}
        self._version: int | None = None

    def hear(self, event: Mapping[str, Any], unix_s: float) -> None:
        """Take an event in.

        Args:
          event: of events.jsonl, a process's start included.
          unix_s: when it was, seconds since 1970.
        """
        track = str(event.get("track", ""))
        if event.get("kind") == "start":
            # A new process of the controller has workers of its own.
            self._known, self._process = {}, event
        elif track == "publish" and isinstance(event.get("version"), int):
            self._version = event["version"]
        elif track.startswith(PREFIX):
            self._hear_worker(track.removeprefix(PREFIX), event, unix_s)

    def rows(self, heard_s: float) -> list[dict[str, Any]]:
        """Every worker, by name; `heard_s` is when the log last grew."""
        if self._known:
            rows = sorted(self._known.values(), key=lambda worker: worker.name)
            return [dataclasses.asdict(row) for row in rows]
        if not self._process:
            return []
        single = Worker(
            name="local",
            role="sample+train",
            version=self._version,
            pid=self._process.get("pid"),
            incarnation=self._process.get("incarnation", 1),
            heard_s=heard_s,
        )
        return [dataclasses.asdict(single)]

    def _hear_worker(self, name: str, event: Mapping[str, Any], unix_s: float) -> None:
        worker = self._known.setdefault(name, Worker(name=name))
        what = str(event.get("name", ""))
        worker.heard_s = max(worker.heard_s, unix_s)
        role = event.get("role")
        worker.role = role if isinstance(role, str) else worker.role
        for field in ("version", "pid", "incarnation"):
            value = event.get(field)
            # -1 and 0 stand for what the controller has not heard yet.
            if isinstance(value, int) and value >= (field != "version"):
                setattr(worker, field, value)
        if what in _OVER:
            worker.state = "lost"
            worker.lost += 1
            worker.reason = str(event.get("reason", ""))
        else:
            worker.state = _STATES.get(what, "working")
