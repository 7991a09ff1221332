"""A run while it goes on: what its logs say by now, kept small however long it is.

metrics, events, evaluations  -> Follower -> Watch -> page(): the page's JSON
newest rollouts                                    -> facts(): for Prometheus
"""

import collections
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jigsaw_jax.store import browser, files
from jigsaw_jax.store.follow import Follower, News
from jigsaw_jax.store.page import columns
from jigsaw_jax.store.perfetto import OneClock
from jigsaw_jax.store.run_dir import RunDir
from jigsaw_jax.store.timeline import timeline
from jigsaw_jax.store.workers import Workers

POINTS_MAX = 600
EVENTS_MAX = 5_000
ROUNDS_MAX = 6
ROLLOUT_BYTES_MAX = 400_000
ROLLOUT_UPDATES = 3
# A run that says nothing for this long is shown as silent: compiling takes minutes.
SILENT_S = 120.0


class Thinned:
    """Records at even distances, the newest always among them.

    Args:
      most: how many it keeps at least half of; then every second one goes.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self.newest: dict[str, Any] = {}
        self._most = most
        self._every = 1
        self._kept: list[dict[str, Any]] = []

    def add(self, record: dict[str, Any]) -> None:
        """Take the next record in."""
        if self.total % self._every == 0:
            self._kept.append(record)
        self.newest = record
        self.total += 1
        if len(self._kept) > self._most:
            self._kept = self._kept[::2]
            self._every *= 2

    def records(self) -> list[dict[str, Any]]:
        """What is kept, in order."""
        is_last = not self._kept or self._kept[-1] is self.newest
        return self._kept if is_last else [*self._kept, self.newest]


class Watch:
    """Follows one run's directory; `refresh` before reading. Safe from any thread.

    Args:
      run: its directory, which may be empty yet.
      now_s: wall time, seconds since 1970.

    Attributes:
      stamp: grows whenever a refresh found something.
    """

    def __init__(self, run: RunDir, now_s: Callable[[], float]) -> None:
        self.stamp = 0
        self._run = run
        self._now_s = now_s
        self._lock = threading.Lock()
        self._metrics_log = Follower(run.metrics)
        self._events_log = Follower(run.events)
        self._evaluations_log = Follower(run.evaluations)
        self._heard_s = 0.0
        self._rollouts: dict[str, Any] = {"groups": [], "updates": []}
        self._rollouts_seen: list[tuple[str, int]] = []
        self._metrics = Thinned(POINTS_MAX)
        self._evaluations = Thinned(POINTS_MAX)
        self._forget_events()

    def refresh(self) -> None:
        """Read what is new in the logs."""
        with self._lock:
            before = self._seen()
            self._read_metrics()
            self._read_events()
            self._read_rollouts()
            if self._seen() != before:
                self.stamp += 1

    def page(self) -> dict[str, Any]:
        """What the live page shows, as JSON values."""
        with self._lock:
            return {
                "stamp": self.stamp,
                "name": self._run.path.resolve().name,
                "status": self._status(),
                "updates": self._metrics.total,
                "newest": self._metrics.newest,
                "metrics": columns(self._metrics.records()),
                "evaluations": self._evaluations.records(),
                "timeline": self._timeline(),
                "workers": self._worker_rows(),
                "rollouts": self._rollouts,
                "damaged": self._damaged(),
            }

    def facts(self) -> dict[str, Any]:
        """What `prometheus.text` writes: the newest numbers."""
        with self._lock:
            return {
                "name": self._run.path.resolve().name,
                "status": self._status(),
                "updates": self._metrics.total,
                "newest": self._metrics.newest,
                "evaluation": self._evaluations.newest,
                "workers": self._worker_rows(),
                "damaged": self._damaged(),
            }

    def _seen(self) -> tuple[Any, ...]:
        totals = (self._metrics.total, self._evaluations.total, self._events_total)
        return (*totals, self._rollouts_seen, self._damaged())

    def _damaged(self) -> int:
        logs = (self._metrics_log, self._events_log, self._evaluations_log)
        return self._events_odd + sum(log.damaged for log in logs)

    def _read_metrics(self) -> None:
        for news in _all_of(self._metrics_log):
            self._metrics = Thinned(POINTS_MAX) if news.is_anew else self._metrics
            for record in news.records:
                self._metrics.add(record)
        for news in _all_of(self._evaluations_log):
            if news.is_anew:
                self._evaluations = Thinned(POINTS_MAX)
            for record in news.records:
                self._evaluations.add(record)

    def _read_events(self) -> None:
        for news in _all_of(self._events_log):
            if news.is_anew:
                self._forget_events()
            for event in news.records:
                try:
                    self._take_event(event)
                except (KeyError, TypeError, AttributeError):
                    # Another version's event, or a hand's; the others still count.
                    self._events_odd += 1

    def _take_event(self, event: dict[str, Any]) -> None:
        shifted = self._clock.on(event)
        at_s = shifted["end_s" if event["kind"] == "interval" else "at_s"]
        unix_s = at_s + (self._clock.origin_s or 0.0)
        self._heard_s = max(self._heard_s, unix_s)
        self._workers.hear(event, unix_s)
        self._events_total += 1
        if not shifted["track"].startswith("worker/"):
            self._events_cut |= len(self._events) == EVENTS_MAX
            self._events.append(shifted)

    def _forget_events(self) -> None:
        self._clock = OneClock()
        self._workers = Workers()
        self._events: collections.deque[dict[str, Any]] = collections.deque(
            maxlen=EVENTS_MAX
        )
        self._events_cut = False
        self._events_total = 0
        self._events_odd = 0

    def _read_rollouts(self) -> None:
        paths = sorted(self._run.rollouts.glob("update-*.jsonl"))[-1:]
        seen = [(path.name, _size_and_time(path)[0]) for path in paths]
        if seen == self._rollouts_seen:
            return
        self._rollouts_seen = seen
        try:
            self._rollouts = browser.newest_groups(
                self._run.rollouts,
                updates=ROLLOUT_UPDATES,
                bytes_max=ROLLOUT_BYTES_MAX,
            )
        except (files.StoreError, OSError, KeyError, TypeError):
            self._rollouts = {"groups": [], "updates": []}

    def _timeline(self) -> dict[str, Any]:
        """The newest rounds."""
        lines = timeline(self._events, slots_max=EVENTS_MAX)
        rounds = lines["rounds"]
        if self._events_cut and len(rounds) > 1:
            # Its beginning is no longer kept.
            rounds = rounds[1:]
        rounds = rounds[-ROUNDS_MAX:]
        start = min((one["start"] for one in rounds), default=0.0)
        others = [row for row in lines["others"] if row[1] >= start]
        return lines | {"rounds": rounds, "others": others}

    def _status(self) -> dict[str, Any]:
        """Whether the run goes on, and since when the log is silent."""
        silent_s = max(0.0, self._now_s() - self._heard_s) if self._heard_s else None
        # A run writes its summary when it ends; the next process logs after it.
        is_ended = _size_and_time(self._run.summary)[1] >= self._heard_s - 1
        if silent_s is None:
            state = "not begun"
        elif is_ended:
            state = "ended"
        else:
            state = "silent" if silent_s > SILENT_S else "running"
        return {"state": state, "silent_s": silent_s}

    def _worker_rows(self) -> list[dict[str, Any]]:
        now_s = self._now_s()
        return [
            row | {"age_s": max(0.0, now_s - row["heard_s"])}
            for row in self._workers.rows(self._heard_s)
        ]


def _all_of(log: Follower) -> Iterator[News]:
    """What is new in a log, some megabytes at a time."""
    while (news := log.read()).records or news.is_anew:
        yield news


def _size_and_time(path: pathlib.Path) -> tuple[int, float]:
    """Of a file; 0 bytes and -1 s of one that a run which goes on has taken away."""
    try:
        state = path.stat()
    except OSError:
        return 0, -1.0
    return state.st_size, state.st_mtime
