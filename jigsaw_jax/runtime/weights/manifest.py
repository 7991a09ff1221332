"""The manifest: what a version of the weights consists of, to the last byte.

It is plain JSON and travels beside the payloads' tickets, from who sends to who
receives. A payload holds pieces, each the bytes of one shard of one leaf.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from jigsaw_jax.runtime.weights.errors import MismatchError

# (start, stop) of each dim.
Index = tuple[tuple[int, int], ...]

ENCODINGS = ("exact", "bf16", "delta")
_FORMAT = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A box of a leaf and the bytes that hold it.

    Attributes:
      index: of the box.
      num_bytes: as sent.
      checksum: of the bytes as sent; empty where it comes with them, as of a payload
        that is promised.
      payload: key of what carries them.
      piece: place in the payload.
      content: checksum of the box itself; `checksum` again where it is sent whole, so
        empty too where that is.
      base: `content` of the box that the bytes are a difference from; None where it
        is sent whole.
    """

    index: Index
    num_bytes: int
    checksum: str
    payload: str
    piece: int
    content: str
    base: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One array of the tree.

    Attributes:
      name: its path in the tree.
      dtype: that it has at both ends.
      sent: dtype of what travels.
      shape: of the whole array.
      shards: that cover it, each element once.
    """

    name: str
    dtype: str
    sent: str
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All of one version.

    Attributes:
      run: id of the run, new with every start of the learner.
      version: of the weights.
      encoding: one of `ENCODINGS`.
      leaves: of the tree, in its order.
    """

    run: str
    version: int
    encoding: str
    leaves: tuple[Leaf, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that travel."""
        return sum(shard.num_bytes for leaf in self.leaves for shard in leaf.shards)

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        leaves = [
            {
                "name": leaf.name,
                "dtype": leaf.dtype,
                "sent": leaf.sent,
                "shape": leaf.shape,
                "shards": [_plain(shard) for shard in leaf.shards],
            }
            for leaf in self.leaves
        ]
        fields = {"run": self.run, "version": self.version, "encoding": self.encoding}
        return json.dumps({"format": _FORMAT, **fields, "leaves": leaves})


def _plain(shard: Shard) -> dict[str, Any]:
    """By hand: `dataclasses.asdict` takes as long as the copies of 200 MB."""
    return {name: getattr(shard, name) for name in Shard.__slots__}


def from_json(text: str, *, is_part: bool = False) -> Manifest:
    """Read a manifest and check that it is whole.

    Args:
      text: from `Manifest.to_json`.
      is_part: of one host of several, which need not cover the leaves.

    Returns:
      The manifest; each leaf's shards cover it, each element once.

    Raises:
      MismatchError: it is not such a text, or a leaf has a hole or an overlap.
    """
    try:
        fields = json.loads(text)
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        leaves = tuple(_leaf(leaf) for leaf in fields.pop("leaves"))
        manifest = Manifest(
            run=_of(str, fields.pop("run")),
            version=_of(int, fields.pop("version")),
            encoding=_of(str, fields.pop("encoding")),
            leaves=leaves,
        )
        if fields or manifest.encoding not in ENCODINGS:
            raise ValueError(f"unknown {sorted(fields) or manifest.encoding!r}")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise MismatchError(
            f"a manifest must be JSON of format {_FORMAT}, got {error!r}"
        ) from None
    for leaf in () if is_part else manifest.leaves:
        _check_covered(leaf)
    return manifest


def merge(parts: Sequence[Manifest]) -> Manifest:
    """The manifest of a slice from those of its hosts.

    Args:
      parts: at least one; each host lists all leaves and its own shards.

    Returns:
      All shards of all leaves.

    Raises:
      MismatchError: the hosts do not speak of the same version and leaves.
    """
    first = parts[0]
    for part in parts[1:]:
        if _heads(part) != _heads(first):
            raise MismatchError(
                f"hosts must send the same leaves of version {first.version} with one "
                f"encoding, got version {part.version!r} and {part.encoding!r}"
            )
    leaves = tuple(
        dataclasses.replace(
            same[0], shards=tuple(shard for leaf in same for shard in leaf.shards)
        )
        for same in zip(*(part.leaves for part in parts), strict=True)
    )
    return dataclasses.replace(first, leaves=leaves)


def by_payload(manifest: Manifest) -> dict[str, list[tuple[int, Shard]]]:
    """(place of the leaf, shard) of every piece, by payload and in its order."""
    found: dict[str, list[tuple[int, Shard]]] = {}
    for place, leaf in enumerate(manifest.leaves):
        for shard in leaf.shards:
            found.setdefault(shard.payload, []).append((place, shard))
    for pieces in found.values():
        pieces.sort(key=lambda piece: piece[1].piece)
    return found


def check_against(manifest: Manifest, wanted: Iterable[tuple[str, Any]]) -> None:
    """Hold a manifest's leaves against those of the receiver's tree.

    Args:
      manifest: what was offered.
      wanted: name of each leaf and what has its shape and dtype.

    Raises:
      MismatchError: a leaf is missing on either side or differs; it is named.
    """
    offered = {leaf.name: leaf for leaf in manifest.leaves}
    own = dict(wanted)
    odd = sorted(offered.keys() ^ own.keys())
    if odd or len(offered) != len(manifest.leaves):
        raise MismatchError(
            f"weights must match leaf for leaf, got {len(odd)} unmatched: {odd[:5]}"
        )
    for name, leaf in offered.items():
        sides = (leaf.shape, leaf.dtype), (own[name].shape, own[name].dtype.name)
        if sides[0] != sides[1]:
            raise MismatchError(f"{name} must be {sides[1]}, got {sides[0]!r}")


def _heads(manifest: Manifest) -> Manifest:
    bare = tuple(dataclasses.replace(leaf, shards=()) for leaf in manifest.leaves)
    return dataclasses.replace(manifest, leaves=bare)


def _leaf(fields: dict[str, Any]) -> Leaf:
    return Leaf(
        name=_of(str, fields["name"]),
        dtype=_of(str, fields["dtype"]),
        sent=_of(str, fields["sent"]),
        shape=tuple(_of(int, size) for size in fields["shape"]),
        shards=tuple(_shard(shard) for shard in fields["shards"]),
    )


def _shard(fields: dict[str, Any]) -> Shard:
    index = tuple((_of(int, a), _of(int, b)) for a, b in fields["index"])
    base = fields["base"]
    if not fields["checksum"] and (fields["content"] or base is not None):
        raise ValueError("what is promised must be sent whole")
    return Shard(
        index=index,
        num_bytes=_of(int, fields["num_bytes"]),
        checksum=_of(str, fields["checksum"]),
        payload=_of(str, fields["payload"]),
        piece=_of(int, fields["piece"]),
        content=_of(str, fields["content"]),
        base=None if base is None else _of(str, base),
    )


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind or (kind is int and value < 0):
        raise ValueError(f"{kind.__name__} expected, got {value!r}")
    return value


def _check_covered(leaf: Leaf) -> None:
    """Boxes are a grid, as those of every sharding are: all of its cells, once each."""
    boxes = {shard.index for shard in leaf.shards}
    is_whole = all(len(box) == len(leaf.shape) for box in boxes)
    cells = 1
    for dim, size in enumerate(leaf.shape) if is_whole else ():
        cuts = sorted({box[dim] for box in boxes})
        ends = [0, *(stop for _, stop in cuts)]
        starts = [*(start for start, _ in cuts), size]
        is_whole = is_whole and ends == starts
        cells *= len(cuts)
    if not (is_whole and len(leaf.shards) == len(boxes) == cells):
        raise MismatchError(
            f"shards of {leaf.name} must cover {leaf.shape} once, got {sorted(boxes)!r}"
        )
