"""The learner's end: a version's shards to a carrier, and the offer of them.

    publish(params, v) -> Offer -> receivers ... again(without failed carriers) -> Offer

In a slice of several hosts every host has a sender, sends the shards that are its own,
and `offer.merge` makes one offer of theirs.
"""

import concurrent.futures
import dataclasses
import logging
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import delta, snapshot
from jigsaw_jax.runtime.weights.carriers.carrier import Carrier
from jigsaw_jax.runtime.weights.checksum import checksum
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.manifest import ENCODINGS, Index, Manifest, Shard
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
      clock: of the deadlines.
    """

    def __init__(
        self,
        run: str,
        carriers: Sequence[Carrier],
        *,
        encoding: str = "exact",
        host: int = 0,
        clock: Clock,
    ) -> None:
        if encoding not in ENCODINGS:
            known = ", ".join(ENCODINGS)
            raise ValueError(f"encoding must be one of {known}, got {encoding!r}")
        self._run = run
        self._carriers = carriers
        self._encoding = encoding
        self._host = host
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
        sent = self._encode(taken, last if self._encoding == "delta" else None)
        self._last = taken
        self._contents = {
            (box.leaf, box.index): one.content
            for box, one in zip(taken.boxes, sent, strict=True)
        }
        if last is not None:
            self.drop_before(last.version)
        return self._offer(taken, sent, (), within_s)

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
        if self._last is None or self._names() <= set(without):
            return None
        sent = [
            _Sent(box.data_u8, self._contents[box.leaf, box.index], None)
            for box in self._last.boxes
        ]
        return self._offer(self._last, sent, without, within_s)

    def drop_before(self, version: int) -> None:
        """Free the payloads of older versions, which no receiver needs any more."""
        for put_version, carrier, ticket in self._put:
            if put_version < version:
                carrier.drop(ticket)
        self._put = [put for put in self._put if put[0] >= version]

    def _names(self) -> set[str]:
        return {carrier.name for carrier in self._carriers}

    def _encode(self, taken: Snapshot, base: Snapshot | None) -> list[_Sent]:
        old = {(b.leaf, b.index): b.data_u8 for b in base.boxes} if base else {}
        is_same_tree = base is not None and base.leaves == taken.leaves

        def one(box: Box) -> _Sent:
            content, key = checksum(box.data_u8), (box.leaf, box.index)
            if is_same_tree and key in old:
                width = np.dtype(taken.leaves[box.leaf].sent).itemsize
                difference = delta.encode(box.data_u8, old[key], width)
                if difference is not None:
                    return _Sent(difference, content, self._contents[key])
            return _Sent(box.data_u8, content, None)

        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(one, taken.boxes))

    def _offer(
        self,
        taken: Snapshot,
        sent: list[_Sent],
        without: Collection[str],
        within_s: float,
    ) -> Offer:
        failed: list[str] = []
        for carrier in self._carriers:
            if carrier.name in without:
                continue
            try:
                return self._offer_through(carrier, taken, sent, within_s)
            except CarrierError as error:
                failed.append(f"{carrier.name}: {error}")
                _log.warning("version %d through %s", taken.version, failed[-1])
        raise CarrierError(
            f"no carrier could take version {taken.version}: {'; '.join(failed)}"
        )

    def _offer_through(
        self, carrier: Carrier, taken: Snapshot, sent: list[_Sent], within_s: float
    ) -> Offer:
        self._offers += 1
        prefix = f"v{taken.version}.{self._host}.{self._offers}"
        deadline_s = self._clock.now_s() + within_s
        batches = _batches([len(one.data_u8) for one in sent])

        def put(number: int) -> Any:
            pieces = [sent[place].data_u8 for place in batches[number]]
            ticket = carrier.put(f"{prefix}.{number}", pieces, deadline_s)
            self._put.append((taken.version, carrier, ticket))
            return ticket

        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            tickets = list(threads.map(put, range(len(batches))))
        shards: list[list[Shard]] = [[] for _ in taken.leaves]
        for number, places in enumerate(batches):
            for piece, place in enumerate(places):
                box = taken.boxes[place]
                shard = _shard(box, sent[place], f"{prefix}.{number}", piece)
                shards[box.leaf].append(shard)
        leaves = tuple(
            dataclasses.replace(leaf, shards=tuple(of_leaf))
            for leaf, of_leaf in zip(taken.leaves, shards, strict=True)
        )
        manifest = Manifest(
            run=self._run,
            version=taken.version,
            encoding=self._encoding,
            leaves=leaves,
        )
        return Offer(
            manifest=manifest.to_json(),
            tickets={
                f"{prefix}.{number}": (carrier.name, ticket)
                for number, ticket in enumerate(tickets)
            },
        )


def _shard(box: Box, sent: _Sent, payload: str, piece: int) -> Shard:
    is_whole = sent.base is None
    return Shard(
        index=box.index,
        num_bytes=len(sent.data_u8),
        checksum=sent.content if is_whole else checksum(sent.data_u8),
        payload=payload,
        piece=piece,
        content=sent.content,
        base=sent.base,
    )


def _batches(sizes: Sequence[int]) -> list[range]:
    """Neighbours together, up to `PAYLOAD_BYTES` or one larger piece."""
    found, start, total = [], 0, 0
    for place, size in enumerate(sizes):
        if place > start and total + size > PAYLOAD_BYTES:
            found.append(range(start, place))
            start, total = place, 0
        total += size
    return [*found, range(start, len(sizes))] if sizes else []
