"""The sampler's end: an offer becomes a tree on this mesh, whole or not at all.

    offer -> is it ours, newer, leaf for leaf? -> fetch, check, copy -> place -> version
                 |                                     | failed: warn, ask for another
                 +-- no: StaleError, MismatchError     +-> again(carriers that failed)

Payloads may be promised: the first are fetched and checked while the sender still makes
the last. Nothing that the receiver or its caller had changes before the last arrow.
"""

import concurrent.futures
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import delta, manifest
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.carriers.carrier import Carrier, Promising
from jigsaw_jax.runtime.weights.checksum import checksum
from jigsaw_jax.runtime.weights.cores import give_way, num_threads
from jigsaw_jax.runtime.weights.errors import (
    BaseVersionError,
    CarrierError,
    CorruptError,
    MismatchError,
    StaleError,
    WeightError,
    free_memory_of,
)
from jigsaw_jax.runtime.weights.manifest import Index, Leaf, Manifest, Shard
from jigsaw_jax.runtime.weights.offer import Offer
from jigsaw_jax.runtime.weights.placement import Host, local_boxes, volume

TRIES = 2

_log = logging.getLogger(__name__)


class Receiver:
    """Takes the versions of one run, on one host; one thread calls it.

    Args:
      run: id of the run whose offers it takes.
      wanted: tree of `jax.ShapeDtypeStruct`, with the type of the learner's leaves and
        the sharding of this mesh.
      carriers: that offers may come through.
      keep_base: keep a copy on the host, on CPU the arrays' own memory, so that offers
        may be differences.
      threads: that fetch, check and copy; 0 takes half of the cores.
      clock: of the deadlines.

    Attributes:
      version: of the last tree; -1 before the first.
    """

    def __init__(
        self,
        run: str,
        wanted: Any,
        carriers: Sequence[Carrier],
        *,
        keep_base: bool = False,
        threads: int = 0,
        clock: Clock,
    ) -> None:
        flat, self._structure = jax.tree_util.tree_flatten_with_path(wanted)
        self._wanted = [(jax.tree_util.keystr(path), leaf) for path, leaf in flat]
        self._run = run
        self._carriers = {carrier.name: carrier for carrier in carriers}
        self._keep_base = keep_base
        self._threads = threads or num_threads()
        self._clock = clock
        self._arena = Arena()
        self._boxes = [local_boxes(leaf) for _, leaf in self._wanted]
        self._own = [frozenset(boxes) for boxes in self._boxes]
        self._base: Host | None = None
        self._contents: dict[tuple[str, Index], str] = {}
        self.version = -1

    def receive(
        self,
        offer: Offer,
        *,
        again: Callable[[frozenset[str]], Offer | None] | None = None,
        carrier_s: float = 20.0,
        within_s: float = 60.0,
    ) -> Any:
        """Fetch a version.

        Args:
          offer: of a newer one.
          again: asked, with the names of carriers that failed, for another offer of it,
            sent whole; None, or an answer of None, gives up.
          carrier_s: what an offer may take.
          within_s: what all of them may take.

        Returns:
          The tree on this host's devices, every shard's checksum verified.

        Raises:
          StaleError: of another run, or not newer.
          MismatchError: its leaves are not those wanted.
          CarrierError: no carrier delivered it; CorruptError when its bytes were wrong.
          BaseVersionError: differences from weights that are not here, and no `again`.
        """
        end_s = self._clock.now_s() + within_s
        failed: frozenset[str] = frozenset()
        while True:
            deadline_s = min(end_s, self._clock.now_s() + carrier_s)
            try:
                return self._receive(offer, deadline_s)
            except WeightError as error:
                free_memory_of(error)
                if not isinstance(error, (CarrierError, BaseVersionError)):
                    raise
                if isinstance(error, CarrierError):
                    failed |= {name for name, _ in offer.tickets.values()}
                _log.warning("weights did not arrive, %s", error)
                if again is None or self._clock.now_s() >= end_s:
                    raise
                following = again(failed)
                if following is None:
                    raise
                offer = following

    def _receive(self, offer: Offer, deadline_s: float) -> Any:
        offered = manifest.from_json(offer.manifest)
        if offered.run != self._run:
            raise StaleError(f"run must be {self._run!r}, got {offered.run!r}")
        if offered.version <= self.version:
            raise StaleError(
                f"version must be over {self.version}, got {offered.version!r}"
            )
        manifest.check_against(offered, self._wanted)
        leaves = {leaf.name: leaf for leaf in offered.leaves}
        ordered = [leaves[name] for name, _ in self._wanted]
        sent = [_sent_dtype(leaf) for leaf in ordered]
        self._check_shards(ordered, sent)
        wanted = [leaf for _, leaf in self._wanted]
        whole = [
            {shard.index for shard in leaf.shards if shard.base is None}.intersection(
                own
            )
            for leaf, own in zip(ordered, self._boxes, strict=True)
        ]
        host = Host(wanted, sent, self._arena, self._boxes, whole)
        self._fetch(offer, offered, host, deadline_s)
        arrays = [
            array if leaf.sent == leaf.dtype else array.astype(leaf.dtype)
            for leaf, array in zip(ordered, host.place(), strict=True)
        ]
        jax.block_until_ready(arrays)
        if self._keep_base:
            self._base = host
            self._contents = {
                (leaf.name, shard.index): shard.content
                for leaf in ordered
                for shard in leaf.shards
                # Of a promised one nobody can make a difference.
                if shard.content
            }
        self.version = offered.version
        return self._structure.unflatten(arrays)

    def _check_shards(self, leaves: list[Leaf], sent: list[np.dtype]) -> None:
        for leaf, dtype in zip(leaves, sent, strict=True):
            for shard in leaf.shards:
                if shard.base is not None and leaf.sent != leaf.dtype:
                    raise MismatchError(
                        f"{leaf.name} must be a difference of {leaf.dtype}, "
                        f"got {leaf.sent!r}"
                    )
                own = self._contents.get((leaf.name, shard.index))
                if shard.base is not None and shard.base != own:
                    raise BaseVersionError(
                        f"{leaf.name} must be a difference from version "
                        f"{self.version}, got one from other weights"
                    )
                size = volume(shard.index) * dtype.itemsize
                if shard.base is None and shard.num_bytes != size:
                    raise MismatchError(
                        f"{leaf.name} must have {size} bytes at {shard.index}, "
                        f"got {shard.num_bytes!r}"
                    )

    def _fetch(
        self, offer: Offer, offered: Manifest, host: Host, deadline_s: float
    ) -> None:
        """Fill the host's boxes from all payloads that have a part of them."""
        places = {name: place for place, (name, _) in enumerate(self._wanted)}
        payloads = [
            (
                key,
                [(places[offered.leaves[leaf].name], shard) for leaf, shard in pieces],
            )
            for key, pieces in manifest.by_payload(offered).items()
        ]
        with concurrent.futures.ThreadPoolExecutor(
            self._threads, initializer=give_way
        ) as threads:
            futures = [
                threads.submit(self._take, offer, key, pieces, host, deadline_s)
                for key, pieces in payloads
                if any(host.needs(leaf, shard.index) for leaf, shard in pieces)
            ]
            concurrent.futures.wait(
                futures, return_when=concurrent.futures.FIRST_EXCEPTION
            )
            for future in futures:
                future.cancel()
        for future in futures:
            if not future.cancelled():
                future.result()

    def _take(
        self,
        offer: Offer,
        key: str,
        pieces: list[tuple[int, Shard]],
        host: Host,
        deadline_s: float,
    ) -> None:
        """One payload: fetch, check, copy."""
        name, ticket = offer.tickets.get(key, ("no carrier", None))
        carrier = self._carriers.get(name)
        if carrier is None:
            raise CarrierError(
                f"payload {key} must come by a known carrier, got {name!r}"
            )
        shards = [shard for _, shard in pieces]
        got = _verified(carrier, key, ticket, shards, deadline_s)
        for (leaf, shard), data_u8 in zip(pieces, got, strict=True):
            if shard.base is None and shard.index in self._own[leaf]:
                host.adopt(leaf, shard.index, data_u8)
            elif host.needs(leaf, shard.index):
                host.write(leaf, shard.index, self._whole(leaf, shard, data_u8))

    def _whole(self, leaf: int, shard: Shard, data_u8: np.ndarray) -> np.ndarray:
        """The box's own bytes, from those or from a difference."""
        if shard.base is None:
            return data_u8
        assert self._base is not None
        whole_u8, is_all_here = self._base.read(leaf, shard.index)
        width = self._wanted[leaf][1].dtype.itemsize
        whole_u8 ^= delta.decode(data_u8, len(whole_u8), width)
        if is_all_here and checksum(whole_u8) != shard.content:
            raise CorruptError(
                f"{self._wanted[leaf][0]} at {shard.index} must have checksum "
                f"{shard.content} after its difference was applied"
            )
        return whole_u8


def _verified(
    carrier: Carrier, key: str, ticket: Any, shards: list[Shard], deadline_s: float
) -> Sequence[np.ndarray]:
    """A payload's pieces, once more from the carrier where they come out wrong."""
    sizes = [shard.num_bytes for shard in shards]
    checksums: Sequence[str] = [shard.checksum for shard in shards]
    is_promised = not all(checksums)
    wrong = None
    for _ in range(TRIES):
        if not is_promised:
            got = carrier.get(ticket, sizes, deadline_s)
        elif isinstance(carrier, Promising):
            got, checksums = carrier.get_promised(key, ticket, sizes, deadline_s)
        else:
            raise CarrierError(f"{carrier.name} must have checksums for {key}")
        wrong = _fault(got, sizes, checksums)
        if wrong is None:
            return got
    raise CorruptError(f"payload {key} by {carrier.name} {wrong}")


def _fault(
    got: Sequence[np.ndarray], sizes: Sequence[int], checksums: Sequence[str]
) -> str | None:
    """What is wrong with the pieces of a payload, if anything."""
    if len(got) != len(sizes) or len(checksums) != len(sizes):
        return f"must have {len(sizes)} pieces, got {len(got)!r}"
    for piece, data_u8 in enumerate(got):
        size = sizes[piece]
        if len(data_u8) != size:
            return f"must have {size} bytes in piece {piece}, got {len(data_u8)!r}"
        found = checksum(data_u8)
        if found != checksums[piece]:
            return (
                f"must have checksum {checksums[piece]} in piece {piece}, got {found!r}"
            )
    return None


def _sent_dtype(leaf: Leaf) -> np.dtype:
    is_rounded = leaf.sent == "bfloat16" and leaf.dtype in ("float32", "float64")
    if leaf.sent != leaf.dtype and not is_rounded:
        raise MismatchError(
            f"{leaf.name} must be sent as {leaf.dtype}, got {leaf.sent!r}"
        )
    return jnp.dtype(leaf.sent)
