"""Reads a JSONL file while others write it: each call gives what is new."""

import json
import os
import pathlib
from typing import Any, NamedTuple

_CHECKED_BYTES = 64
_READ_BYTES = 8 << 20


class News(NamedTuple):
    """What one read found.

    records: whole records since the read before, in order.
    is_anew: the file was cut or replaced; `records` are from its beginning, and what
        was read before counts no more.
    """

    records: list[dict[str, Any]]
    is_anew: bool


class Follower:
    """One file, which need not exist yet.

    A read takes some megabytes at most, so that a long log never has to fit into
    memory; read again until nothing comes. A half-written last line is left for the
    next read. A resumed run cuts its logs: a file that is shorter than what was read,
    another file, or one whose bytes before the end of what was read are others, is
    read from its beginning.

    Args:
      path: of the file.

    Attributes:
      damaged: lines that are no JSON object; they are passed over.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.damaged = 0
        self._path = path
        self._inode = 0
        self._offset = 0
        self._before = b""

    def read(self) -> News:
        """What comes next of what was appended; nothing where there is no file."""
        try:
            with self._path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            is_anew = self._offset > 0
            self._restart(0)
            return News([], is_anew)

    def _read(self, file: Any) -> News:
        state = os.fstat(file.fileno())
        is_anew = self._offset > 0 and not self._goes_on(file, state)
        if is_anew or not self._offset:
            self._restart(state.st_ino)
        records: list[dict[str, Any]] = []
        file.seek(self._offset)
        rest = b""
        # One line may be longer than what is read at once.
        while not records and (chunk := file.read(_READ_BYTES)):
            lines, end, rest = (rest + chunk).rpartition(b"\n")
            records += self._parsed(lines)
            self._offset += len(lines) + len(end)
            self._before = (self._before + lines + end)[-_CHECKED_BYTES:]
        return News(records, is_anew)

    def _goes_on(self, file: Any, state: os.stat_result) -> bool:
        if state.st_ino != self._inode or state.st_size < self._offset:
            return False
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _restart(self, inode: int) -> None:
        self._inode, self._offset, self._before = inode, 0, b""
        self.damaged = 0

    def _parsed(self, lines: bytes) -> list[dict[str, Any]]:
        found = []
        for line in lines.split(b"\n") if lines else ():
            try:
                # JSON has no NaN, and a browser refuses what holds one.
                record = json.loads(line, parse_constant=lambda _: None)
            except ValueError:
                record = None
            if isinstance(record, dict):
                found.append(record)
            else:
                self.damaged += 1
        return found
