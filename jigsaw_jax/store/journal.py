"""The event log: what every part of the pipeline did and when, cheap to write.

    {"kind":"start","incarnation":1,"at_s":0.1,"unix_s":1760000000.0}
    {"kind":"interval","track":"slot/03","name":"sample","start_s":1,"end_s":2,...}
    {"kind":"mark","track":"publish","name":"version","at_s":2.5,"version":3}

Seconds are those of the run's monotonic clock, to the microsecond; the start record of
each process ties them to the wall. A call appends to a queue; one background thread
writes lines.
"""

import collections
import functools
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from jigsaw_jax.store import files
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.json_lines import encode_lines

# Often, so that no call holds the interpreter from other threads for long.
FLUSH_S = 0.1
# A line's kind, its name and its fields' keys; its track, its times and their values.
_Form = tuple[str, str, tuple[str, ...]]
_Row = Sequence[Any]
_TIMES = {"interval": ("start_s", "end_s"), "mark": ("at_s",)}


class EventLog:
    """Appends intervals and marks to events.jsonl from any thread.

    Args:
      path: of events.jsonl; its directory must exist.
      incarnation: which process of the run this is (`RunDir.incarnation`).
      at_s: now, on the run's clock.
      unix_s: now, in seconds since 1970.
      on_failed: called from the writing thread with what it failed of.

    Raises:
      StoreError: if the file cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        incarnation: int,
        at_s: float,
        unix_s: float,
        on_failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._path = pathlib.Path(path)
        self._on_failed = on_failed
        self._pending: collections.deque[tuple[_Form, Iterable[_Row]]]
        self._pending = collections.deque()
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._unwritten = b""
        self._error: OSError | None = None
        try:
            files.cut(self._path, files.whole_lines_size(self._path))
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot write {self._path}: {reason}") from error
        start = {
            "kind": "start",
            "incarnation": incarnation,
            "at_s": at_s,
            "unix_s": unix_s,
            "pid": os.getpid(),
        }
        self._unwritten = f"{json.dumps(start)}\n".encode()
        self._thread = threading.Thread(
            target=self._write_often, name="event-log", daemon=True
        )
        self._thread.start()

    def interval(
        self, track: str, name: str, start_s: float, end_s: float, **fields: Any
    ) -> None:
        """Record that `track` did `name` from `start_s` to `end_s`.

        Args:
          track: who, for example "learner" or "slot/03".
          name: what, for example "accumulate".
          start_s: on the run's clock.
          end_s: on the run's clock.
          **fields: JSON values that say more.
        """
        form = "interval", name, tuple(fields)
        self._pending.append((form, ((track, start_s, end_s, *fields.values()),)))

    def intervals(
        self, name: str, keys: tuple[str, ...], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Record many intervals with the same fields.

        Args:
          name: what was done.
          keys: of the fields.
          rows: of each, its track, start and end, and the fields' values.
        """
        self._pending.append((("interval", name, keys), rows))

    def mark(self, track: str, name: str, at_s: float, **fields: Any) -> None:
        """Record that `name` happened on `track` at `at_s`; fields as in `interval`."""
        form = "mark", name, tuple(fields)
        self._pending.append((form, ((track, at_s, *fields.values()),)))

    def flush(self) -> None:
        """Write everything recorded so far and hand it to the operating system.

        Raises:
          StoreError: if the disk refuses them; they stay queued for the next try.
        """
        self._write()
        if self._error is not None:
            reason = self._error.strerror or self._error
            raise StoreError(f"cannot write {self._path}: {reason}") from self._error

    def close(self) -> None:
        """Flush and stop the background thread; without effect the second time."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        try:
            self.flush()
        finally:
            self._file.close()

    def _write_often(self) -> None:
        while not self._closed.wait(FLUSH_S):
            try:
                self.flush()
            except BaseException as error:
                if self._on_failed is None:
                    raise
                self._on_failed(error)
                return

    def _write(self) -> None:
        with self._writing:
            # Only what is there now: other threads may append without end.
            batch = [self._pending.popleft() for _ in range(len(self._pending))]
            lines: list[msgspec.Struct] = []
            for form, rows in batch:
                lines += _lines(form, rows)
            self._unwritten += encode_lines(lines)
            try:
                while self._unwritten:
                    written = self._file.write(self._unwritten)
                    self._unwritten = self._unwritten[written:]
                self._error = None
            except OSError as error:
                self._error = error


def _lines(form: _Form, rows: Iterable[_Row]) -> list[msgspec.Struct]:
    """Records that become lines of JSON, their times to the microsecond."""
    make, name = _line_type(form), form[1]
    # `round(at * 1e6) / 1e6` takes half as long as `round(at, 6)`.
    if form[0] == "mark":
        return [
            make(track, name, round(at * 1e6) / 1e6, *values)
            for track, at, *values in rows
        ]
    return [
        make(track, name, round(start * 1e6) / 1e6, round(end * 1e6) / 1e6, *values)
        for track, start, end, *values in rows
    ]


@functools.lru_cache(maxsize=256)
def _line_type(form: _Form) -> Callable[..., msgspec.Struct]:
    """A record with a line's fields in their order, which is encoded in C."""
    kind, _, keys = form
    names = ("track", "name", *_TIMES[kind], *keys)
    # By number, since a key may be any text.
    fields = {f"field_{index}": name for index, name in enumerate(names)}
    return msgspec.defstruct(
        "Line",
        [(field, Any) for field in fields],
        rename=fields,
        tag_field="kind",
        tag=kind,
        gc=False,
    )
