"""How every group ended that has, in a few bytes each.

A run ends hundreds of groups an update and must know all of them to its end: none may
open twice, and word of one that comes late is no error. Names are kept in the order of
their ends, compressed, and a mark of each, eight bytes, says at once whether one is
among them.
"""

import json
import zlib
from collections.abc import Iterator

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
        self._shelves.setdefault(number, bytearray()).extend(mark)
        self._num += 1
        newest = self._newest.setdefault(how, [])
        newest.append(group)
        if len(newest) == BLOCK:
            block = zlib.compress(json.dumps(newest).encode())
            self._packed.setdefault(how, []).append(block)
            newest.clear()

    def items(self) -> Iterator[tuple[GroupId, str]]:
        """Every group and how it ended, in the order of the ends of each kind."""
        for how, newest in self._newest.items():
            for block in self._packed.get(how, ()):
                for uid, draw in json.loads(zlib.decompress(block)):
                    yield GroupId(uid, draw), how
            for group in newest:
                yield group, how


def _mark(group: GroupId) -> tuple[int, bytes]:
    """The number of the shelf that a group's mark belongs to, and the mark."""
    # It differs from process to process, and so stays in this one.
    number = hash(group)
    return number % SHELVES, number.to_bytes(MARK_BYTES, "little", signed=True)
