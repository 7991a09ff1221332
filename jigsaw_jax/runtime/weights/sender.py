"""The learner's end: a version's shards to a carrier, and the offer of them.

    publish(params, v) -> Offer -> receivers ... again(without failed carriers) -> Offer

A carrier that promises has the offer out before a byte was copied: the version is
written beside what the caller does next, and receivers take what is there.

In a slice of several hosts every host has a sender, sends the shards that are its own,
and `offer.merge` makes one offer of theirs.
"""

import concurrent.futures
import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import cutting, delta, snapshot
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.carriers.carrier import Carrier, Promising
from jigsaw_jax.runtime.weights.cores import give_way
from jigsaw_jax.runtime.weights.cutting import Cut, Version
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.manifest import ENCODINGS, Index, Manifest, Shard
from jigsaw_jax.runtime.weights.offer import Offer
from jigsaw_jax.runtime.weights.piece import Piece, gather
from jigsaw_jax.runtime.weights.placement import box_shape

THREADS = 2

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Sent:
    """A box as it travels, and what the manifest says of a difference."""

    piece: Piece
    content: str | None = None
    base: str | None = None


class Sender:
    """Publishes versions of one run; one thread calls it.

    It keeps the last version on the host, for promises, carriers that fail, samplers
    that join, and differences of the next; on CPU, where that is the learner's own
    memory, the arrays must not be donated before the next version is published.

    Args:
      run: its id, new with every start of the learner.
      carriers: the best first; the next is tried where one fails.
      encoding: one of `ENCODINGS`: "exact" sends every bit; "bf16" rounds wider floats,
        which the receiver widens again; "delta" sends every bit, as differences from
        the last version where those are smaller.
      wanted: tree of `jax.ShapeDtypeStruct` as receivers are given it, on any mesh of
        that shape: boxes are sent as their devices hold them.
      host: of several, which one this is.
      label: begins the keys of its payloads; of two senders of a run, each its own.
      clock: of the deadlines.

    Attributes:
      passed_over: carriers that could not take the last offer, and why not.
    """

    def __init__(
        self,
        run: str,
        carriers: Sequence[Carrier],
        *,
        encoding: str = "exact",
        wanted: Any = None,
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
        self._wanted = {
            jax.tree_util.keystr(path): box_shape(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(wanted)
        }
        # For the copies of differences; as many as are made at a time.
        self._arena = Arena(free_max=2 * THREADS)
        self._last: Version | None = None
        self._contents: dict[tuple[int, Index], str] = {}
        self._offers = 0
        self.passed_over: tuple[str, ...] = ()
        self._put: list[tuple[int, Carrier, Any]] = []
        self._writing: list[concurrent.futures.Future[None]] = []

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
        if last is not None and version <= last.number:
            raise ValueError(f"version must be over {last.number}, got {version!r}")
        self._settle()
        taken = snapshot.take(params, version, as_bf16=self._encoding == "bf16")
        new, encode = cutting.cut(taken, self._wanted, last), _whole
        if self._encoding == "delta" and last is not None and new.cuts is last.cuts:
            encode = self._encode_against(last)
        offer, contents = self._offer(new, encode, (), within_s)
        self._last, self._contents = new, contents
        if last is not None:
            self.drop_before(last.number)
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
        self._settle()
        offer, _ = self._offer(self._last, _whole, without, within_s)
        return offer

    def drop_before(self, version: int) -> None:
        """Free the payloads of older versions, which no receiver needs any more."""
        for put_version, carrier, ticket in self._put:
            if put_version < version:
                carrier.drop(ticket)
        self._put = [put for put in self._put if put[0] >= version]

    def _encode_against(self, old: Version) -> Callable[[Version, Cut], _Sent]:
        def encode(new: Version, cut: Cut) -> _Sent:
            whole = new.piece(cut)
            new_u8, old_u8 = gather([whole, old.piece(cut)], self._arena)
            width = jnp.dtype(new.taken.leaves[cut.leaf].sent).itemsize
            difference = delta.encode(new_u8, old_u8, width)
            if difference is None:
                return _Sent(Piece.of(new_u8))
            return _Sent(
                Piece.of(difference),
                whole.checksum,
                self._contents[cut.leaf, cut.index],
            )

        return encode

    def _offer(
        self,
        new: Version,
        encode: Callable[[Version, Cut], _Sent],
        without: Collection[str],
        within_s: float,
    ) -> tuple[Offer, dict[tuple[int, Index], str]]:
        """An offer through the first carrier that works, and the boxes' checksums."""
        self.passed_over = ()
        for carrier in self._carriers:
            if carrier.name in without:
                continue
            put = len(self._put)
            try:
                return self._offer_through(carrier, new, encode, within_s)
            except CarrierError as error:
                self.passed_over += (f"{carrier.name}: {error}",)
                _log.warning("version %d through %s", new.number, self.passed_over[-1])
                # What it did take would stay where memory is short.
                for _, _, ticket in self._put[put:]:
                    carrier.drop(ticket)
                del self._put[put:]
        raise CarrierError(
            f"no carrier could take version {new.number}: {'; '.join(self.passed_over)}"
        )

    def _offer_through(
        self,
        carrier: Carrier,
        new: Version,
        encode: Callable[[Version, Cut], _Sent],
        within_s: float,
    ) -> tuple[Offer, dict[tuple[int, Index], str]]:
        self._offers += 1
        prefix = f"{self._label}{new.number}.{self._host}.{self._offers}"
        # Of differences nobody knows the sizes before they are made.
        if self._encoding != "delta" and isinstance(carrier, Promising):
            return self._promise(carrier, new, prefix), {}
        deadline_s = self._clock.now_s() + within_s

        def send(numbered: tuple[int, Sequence[Cut]]) -> tuple[str, Any, list[Shard]]:
            number, cuts = numbered
            key = f"{prefix}.{number}"
            sent = [encode(new, cut) for cut in cuts]
            ticket = carrier.put(key, [one.piece for one in sent], deadline_s)
            self._put.append((new.number, carrier, ticket))
            return key, ticket, _shards(cuts, sent, key)

        with concurrent.futures.ThreadPoolExecutor(
            THREADS, initializer=give_way
        ) as threads:
            done = list(threads.map(send, enumerate(new.batches())))
        sent = [shard for _, _, of_payload in done for shard in of_payload]
        contents = {
            (cut.leaf, cut.index): shard.content
            for cut, shard in zip(new.cuts, sent, strict=True)
        }
        tickets = {key: (carrier.name, ticket) for key, ticket, _ in done}
        return Offer(manifest=self._manifest(new, sent), tickets=tickets), contents

    def _promise(self, carrier: Promising, new: Version, prefix: str) -> Offer:
        """Have a version written meanwhile, and offer it at once."""
        if self._last is not None and new is not self._last:
            # First, so that this one is written where the dropped one was.
            self.drop_before(self._last.number)
        shards, tickets, work = [], {}, []
        sizes = iter(new.sizes())
        for number, cuts in enumerate(new.batches()):
            key = f"{prefix}.{number}"
            ticket = carrier.promise(key)
            self._put.append((new.number, carrier, ticket))
            tickets[key] = carrier.name, ticket
            work.append((ticket, map(new.piece, cuts)))
            shards += [
                Shard(
                    index=cut.index,
                    num_bytes=next(sizes),
                    checksum="",
                    payload=key,
                    piece=place,
                    content="",
                    base=None,
                )
                for place, cut in enumerate(cuts)
            ]
        threads = concurrent.futures.ThreadPoolExecutor(THREADS, initializer=give_way)
        self._writing = [threads.submit(carrier.keep, *one) for one in work]
        threads.shutdown(wait=False)
        return Offer(manifest=self._manifest(new, shards), tickets=tickets)

    def _settle(self) -> None:
        """Wait until all that was promised is kept, as it mostly is."""
        writing, self._writing = self._writing, []
        for future in writing:
            try:
                future.result()
            except CarrierError as error:
                # Those that waited for it know.
                _log.warning("a promise could not be kept: %s", error)

    def _manifest(self, new: Version, sent: Sequence[Shard]) -> str:
        shards: list[list[Shard]] = [[] for _ in new.taken.leaves]
        for cut, shard in zip(new.cuts, sent, strict=True):
            shards[cut.leaf].append(shard)
        manifest = Manifest(
            run=self._run,
            version=new.number,
            encoding=self._encoding,
            leaves=tuple(
                dataclasses.replace(leaf, shards=tuple(of_leaf))
                for leaf, of_leaf in zip(new.taken.leaves, shards, strict=True)
            ),
        )
        return manifest.to_json()


def _whole(new: Version, cut: Cut) -> _Sent:
    return _Sent(new.piece(cut))


def _shards(cuts: Sequence[Cut], sent: list[_Sent], payload: str) -> list[Shard]:
    return [
        Shard(
            index=cut.index,
            num_bytes=one.piece.num_bytes,
            checksum=one.piece.checksum,
            payload=payload,
            piece=place,
            content=one.piece.checksum if one.content is None else one.content,
            base=one.base,
        )
        for place, (cut, one) in enumerate(zip(cuts, sent, strict=True))
    ]
