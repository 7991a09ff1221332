"""How every group ended that has, in a few bytes each.

A run ends hundreds of groups an update and must know all of them to its end: none may
open twice, and word of one that comes late is no error. Names are kept in the order of
their ends, compressed, and a mark of each, eight bytes, says at once whether one is
among them.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from jigsaw_jax.records import GroupId

# Names that are compressed together.
BLOCK = 512
# A mark is looked up among those of its shelf, one in so many.
SHELVES = 4096
MARK_BYTES = 8


class Ended:
    """Groups that have ended, each with one word on how."""

    def __init__(self) -> None:
        self._shelves: dict[int, bytearray] = {}
        self._packed: dict[str, list[bytes]] = {}
        self._newest: dict[str, list[GroupId]] = {}
        self._num = 0

    def __len__(self) -> int:
        """How many there are."""
        return self._num

    def __contains__(self, group: GroupId) -> bool:
        """Whether the group has ended."""
        return self.has_mark(group) and self.how(group) is not None

    def has_mark(self, group: GroupId) -> bool:
        """The same, always at once; an unknown group may have the mark of another.

        That happens once in 10**19, for each that has ended.
        """
        number, mark = _mark(group)
        shelf = self._shelves.get(number, b"")
        place = shelf.find(mark)
        while place > 0 and place % MARK_BYTES:
            place = shelf.find(mark, place + 1)
        return place >= 0

    def how(self, group: GroupId) -> str | None:
        """How a group ended, or None; looks through all of them."""
        return next((how for ended, how in self.items() if ended == group), None)

    def add(self, group: GroupId, how: str) -> None:
        """The group, which had not, has ended so."""
        number, mark = _mark(group)
        shelf = self._shelves.get(number)
        if shelf is None:
            shelf = self._shelves[number] = bytearray()
        shelf += mark
        self._num += 1
        newest = self._newest.setdefault(how, [])
        newest.append(group)
        if len(newest) == BLOCK:
            block = _pack(newest)
            self._packed.setdefault(how, []).append(block)
            newest.clear()

    def items(self) -> Iterator[tuple[GroupId, str]]:
        """Every group and how it ended, in the order of the ends of each kind."""
        for how, newest in self._newest.items():
            for block in self._packed.get(how, ()):
                for group in _unpack(block):
                    yield group, how
            for group in newest:
                yield group, how

    def snapshot(self) -> dict[str, list[Any]]:
        """By how they ended, as JSON values: packed blocks as text, then groups.

        A run's checkpoints have every group that has ended, and nobody waits while
        they are listed.
        """
        return {
            how: [
                *(
                    base64.b64encode(block).decode()
                    for block in self._packed.get(how, ())
                ),
                *([group.uid, group.draw] for group in newest),
            ]
            for how, newest in self._newest.items()
        }


def listed(entries: Iterable[Any]) -> Iterator[GroupId]:
    """Groups of one kind of a snapshot; one of before they were packed has no text."""
    for entry in entries:
        if isinstance(entry, str):
            yield from _unpack(base64.b64decode(entry))
        else:
            yield GroupId(*entry)


def _pack(groups: list[GroupId]) -> bytes:
    return zlib.compress(json.dumps(groups).encode())


def _unpack(block: bytes) -> list[GroupId]:
    return [GroupId(uid, draw) for uid, draw in json.loads(zlib.decompress(block))]


def _mark(group: GroupId) -> tuple[int, bytes]:
    """The number of the shelf that a group's mark belongs to, and the mark."""
    # It differs from process to process, and so stays in this one.
    number = hash(group)
    return number % SHELVES, number.to_bytes(MARK_BYTES, "little", signed=True)
