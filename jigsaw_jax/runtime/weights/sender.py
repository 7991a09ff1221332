"""The learner's end: a version's shards to a carrier, and the offer of them.

    publish(params, v) -> Offer -> receivers ... again(without failed carriers) -> Offer

In a slice of several hosts every host has a sender, sends the shards that are its own,
and `offer.merge` makes one offer of theirs.
"""

import concurrent.futures
import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import delta, snapshot
from jigsaw_jax.runtime.weights.carriers.carrier import Carrier
from jigsaw_jax.runtime.weights.checksum import checksum
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.manifest import ENCODINGS, Index, Leaf, Manifest, Shard
from jigsaw_jax.runtime.weights.offer import Offer
from jigsaw_jax.runtime.weights.snapshot import Box, Snapshot

# Small enough for threads to share a version evenly, large enough for Ray's 1 ms each.
PAYLOAD_BYTES = 16 * 2**20
THREADS = 2

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Sent:
    """Bytes of a box as they travel, and what the manifest says of them."""

    data_u8: np.ndarray
    content: str
    base: str | None


class Sender:
    """Publishes versions of one run; one thread calls it.

    It keeps the last version on the host, for carriers that fail, samplers that join,
    and differences of the next; on CPU, where that is the learner's own memory, the
    arrays must not be donated before the next version is published.

    Args:
      run: its id, new with every start of the learner.
      carriers: the best first; the next is tried where one fails.
      encoding: one of `ENCODINGS`: "exact" sends every bit; "bf16" rounds wider floats,
        which the receiver widens again; "delta" sends every bit, as differences from
        the last version where those are smaller.
      host: of several, which one this is.
      label: begins the keys of its payloads; of two senders of a run, each its own.
      clock: of the deadlines.
    """

    def __init__(
        self,
        run: str,
        carriers: Sequence[Carrier],
        *,
        encoding: str = "exact",
        host: int = 0,
        label: str = "v",
        clock: Clock,
    ) -> None:
        if encoding not in ENCODINGS:
            known = ", ".join(ENCODINGS)
            raise ValueError(f"encoding must be one of {known}, got {encoding!r}")
        self._run = run
        self._carriers = carriers
        self._encoding = encoding
        self._host = host
        self._label = label
        self._clock = clock
        self._last: Snapshot | None = None
        self._contents: dict[tuple[int, Index], str] = {}
        self._offers = 0
        self._put: list[tuple[int, Carrier, Any]] = []

    def publish(self, params: Any, version: int, *, within_s: float = 60.0) -> Offer:
        """Send a version; payloads of the one before the last are dropped.

        Args:
          params: the learner's tree.
          version: newer than any before.
          within_s: what a carrier may take.

        Returns:
          The offer; in differences where the encoding is "delta" and receivers may be
          expected to have the last version.

        Raises:
          CarrierError: no carrier could take it.
          ValueError: the version is not newer.
        """
        last = self._last
        if last is not None and version <= last.version:
            raise ValueError(f"version must be over {last.version}, got {version!r}")
        taken = snapshot.take(params, version, as_bf16=self._encoding == "bf16")
        encode = self._encode_whole
        if self._encoding == "delta" and last and last.leaves == taken.leaves:
            encode = self._encode_against(last)
        offer, contents = self._offer(taken, encode, (), within_s)
        self._last, self._contents = taken, contents
        if last is not None:
            self.drop_before(last.version)
        return offer

    def again(
        self, without: Collection[str] = (), *, within_s: float = 60.0
    ) -> Offer | None:
        """The last version once more, whole.

        Args:
          without: names of carriers that failed.
          within_s: what a carrier may take.

        Returns:
          The offer; None where nothing was published or no carrier is left.

        Raises:
          CarrierError: none of those left could take it.
        """
        names = {carrier.name for carrier in self._carriers}
        if self._last is None or names <= set(without):
            return None
        offer, _ = self._offer(self._last, self._encode_whole, without, within_s)
        return offer

    def drop_before(self, version: int) -> None:
        """Free the payloads of older versions, which no receiver needs any more."""
        for put_version, carrier, ticket in self._put:
            if put_version < version:
                carrier.drop(ticket)
        self._put = [put for put in self._put if put[0] >= version]

    def _encode_whole(self, leaf: Leaf, box: Box) -> _Sent:
        del leaf
        return _Sent(box.data_u8, checksum(box.data_u8), None)

    def _encode_against(self, base: Snapshot) -> Callable[[Leaf, Box], _Sent]:
        old = {(box.leaf, box.index): box.data_u8 for box in base.boxes}
        contents = self._contents

        def encode(leaf: Leaf, box: Box) -> _Sent:
            key, width = (box.leaf, box.index), jnp.dtype(leaf.sent).itemsize
            whole = self._encode_whole(leaf, box)
            if key in old:
                difference = delta.encode(box.data_u8, old[key], width)
                if difference is not None:
                    return _Sent(difference, whole.content, contents[key])
            return whole

        return encode

    def _offer(
        self,
        taken: Snapshot,
        encode: Callable[[Leaf, Box], _Sent],
        without: Collection[str],
        within_s: float,
    ) -> tuple[Offer, dict[tuple[int, Index], str]]:
        """An offer through the first carrier that works, and the boxes' checksums."""
        failed: list[str] = []
        for carrier in self._carriers:
            if carrier.name in without:
                continue
            try:
                return self._offer_through(carrier, taken, encode, within_s)
            except CarrierError as error:
                failed.append(f"{carrier.name}: {error}")
                _log.warning("version %d through %s", taken.version, failed[-1])
        raise CarrierError(
            f"no carrier could take version {taken.version}: {'; '.join(failed)}"
        )

    def _offer_through(
        self,
        carrier: Carrier,
        taken: Snapshot,
        encode: Callable[[Leaf, Box], _Sent],
        within_s: float,
    ) -> tuple[Offer, dict[tuple[int, Index], str]]:
        self._offers += 1
        prefix = f"{self._label}{taken.version}.{self._host}.{self._offers}"
        deadline_s = self._clock.now_s() + within_s

        def send(numbered: tuple[int, Sequence[Box]]) -> tuple[str, Any, list[Shard]]:
            number, boxes = numbered
            key = f"{prefix}.{number}"
            # Summed and copied together, while the bytes are in the cache.
            sent = [encode(taken.leaves[box.leaf], box) for box in boxes]
            ticket = carrier.put(key, [one.data_u8 for one in sent], deadline_s)
            self._put.append((taken.version, carrier, ticket))
            return key, ticket, _shards(boxes, sent, key)

        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            done = list(threads.map(send, enumerate(_batches(taken.boxes))))
        shards: list[list[Shard]] = [[] for _ in taken.leaves]
        of_boxes = [shard for _, _, of_payload in done for shard in of_payload]
        for box, shard in zip(taken.boxes, of_boxes, strict=True):
            shards[box.leaf].append(shard)
        manifest = Manifest(
            run=self._run,
            version=taken.version,
            encoding=self._encoding,
            leaves=tuple(
                dataclasses.replace(leaf, shards=tuple(of_leaf))
                for leaf, of_leaf in zip(taken.leaves, shards, strict=True)
            ),
        )
        tickets = {key: (carrier.name, ticket) for key, ticket, _ in done}
        contents = {
            (box.leaf, box.index): shard.content
            for box, shard in zip(taken.boxes, of_boxes, strict=True)
        }
        return Offer(manifest=manifest.to_json(), tickets=tickets), contents


def _shards(boxes: Sequence[Box], sent: list[_Sent], payload: str) -> list[Shard]:
    return [
        Shard(
            index=box.index,
            num_bytes=len(one.data_u8),
            checksum=one.content if one.base is None else checksum(one.data_u8),
            payload=payload,
            piece=piece,
            content=one.content,
            base=one.base,
        )
        for piece, (box, one) in enumerate(zip(boxes, sent, strict=True))
    ]


def _batches(boxes: Sequence[Box]) -> list[Sequence[Box]]:
    """Neighbours together, up to `PAYLOAD_BYTES` or one larger box."""
    found, start, total = [], 0, 0
    for place, box in enumerate(boxes):
        if place > start and total + len(box.data_u8) > PAYLOAD_BYTES:
            found.append(boxes[start:place])
            start, total = place, 0
        total += len(box.data_u8)
    return [*found, boxes[start:]] if boxes else []
