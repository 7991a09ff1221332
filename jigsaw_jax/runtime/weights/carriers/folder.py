"""Payloads as files of a folder that both sides see: NFS, a mounted bucket, /dev/shm.

    FOLDER/KEY              pieces one behind another; renamed into place when whole
    FOLDER/offer.json       the newest offer; written when all its payloads are there

Slower than the others and the last to fail: it needs no process at the other end.
"""

import contextlib
import itertools
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.offer import Offer
from jigsaw_jax.runtime.weights.piece import Piece, gather
from jigsaw_jax.store.files import StoreError, read_json, write_json

_OFFER = "offer.json"


class FolderCarrier:
    """Writes and reads files; the ticket is a file's name.

    The file system's own time-outs bound its calls: the deadline is looked at before
    each, since a blocked system call can't be left.

    Args:
      folder: made where it is missing.
      is_durable: wait until bytes are on disk; off for folders in memory.
    """

    name = "folder"

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None:
        self._folder = folder
        self._is_durable = is_durable
        # A receiver keeps blocks as long as their version.
        self._arena = Arena(free_max=40)

    def put(self, key: str, pieces: Sequence[Piece], deadline_s: float) -> str:
        """Write a file under another name, then rename it."""
        del deadline_s
        path = self._path(key)
        part = path.with_name(f".{key}.{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb", buffering=0) as file:
                for piece_u8 in gather(pieces, self._arena):
                    _write_all(file.fileno(), piece_u8)
                if self._is_durable:
                    os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise CarrierError(f"cannot write {path}: {error}") from error
        return key

    def get(
        self, ticket: str, sizes: Sequence[int], deadline_s: float
    ) -> list[np.ndarray]:
        """Read a file into memory of its own, so that a truncation can do no harm."""
        del deadline_s
        path = self._path(ticket)
        whole = self._arena.lease(sum(sizes))
        try:
            with path.open("rb", buffering=0) as file:
                got = _read_all(file.fileno(), whole)
                is_longer = bool(file.read(1))
        except OSError as error:
            raise CarrierError(f"cannot read {path}: {error}") from error
        if got != len(whole) or is_longer:
            raise CarrierError(f"{path} must have {len(whole)} bytes, got {got!r}")
        starts = np.cumsum([0, *sizes]).tolist()
        return [whole[a:b] for a, b in itertools.pairwise(starts)]

    def drop(self, ticket: str) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._path(ticket).unlink()

    def post(self, offer: Offer) -> None:
        """Leave an offer, whole, for samplers that look here by themselves.

        Args:
          offer: all of whose tickets are this carrier's.

        Raises:
          CarrierError: it can't be written.
        """
        try:
            tickets = {key: ticket for key, (_, ticket) in offer.tickets.items()}
            text = {"manifest": offer.manifest, "tickets": tickets}
            write_json(self._path(_OFFER), text)
        except StoreError as error:
            raise CarrierError(str(error)) from error

    def find(self) -> Offer | None:
        """The newest posted offer; None before the first.

        Returns:
          The offer; its payloads may be dropped when the next is posted.

        Raises:
          CarrierError: there is one and it can't be read.
        """
        path = self._path(_OFFER)
        if not path.exists():
            return None
        try:
            fields = read_json(path)
            tickets = {
                key: (self.name, name) for key, name in fields["tickets"].items()
            }
            return Offer(manifest=fields["manifest"], tickets=tickets)
        except (StoreError, KeyError, AttributeError, TypeError) as error:
            raise CarrierError(f"{path} must hold an offer, got {error!r}") from error

    def _path(self, key: str) -> pathlib.Path:
        # A ticket comes from outside and must not lead out of the folder.
        if key in ("", ".", "..") or pathlib.PurePath(key).name != key:
            raise CarrierError(f"key must be a plain file name, got {key!r}")
        return self._folder / key


def _write_all(file: int, data_u8: np.ndarray) -> None:
    view = data_u8.data
    while view:
        view = view[os.write(file, view) :]


def _read_all(file: int, into_u8: np.ndarray) -> int:
    """How many bytes were there, up to the size of `into`."""
    start = 0
    while start < len(into_u8):
        got = os.readv(file, [into_u8[start:].data])
        if not got:
            break
        start += got
    return start
