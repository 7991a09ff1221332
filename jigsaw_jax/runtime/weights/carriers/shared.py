"""Payloads in memory that both ends map: between processes of one machine.

    block     number of its use | pieces, each at a multiple of 64 bytes

    sender    lock alone, next number, write, unlock -> ticket ... drop -> used again
    receiver  lock with others, is it the ticket's number? -> pieces ... unlock

The sender writes pieces where they stay, and the receiver takes them where they lie.
Its lock, which goes with the last reference to them, or with its process, is how the
sender knows that a block is in use.
"""

import itertools
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from jigsaw_jax.runtime.weights.arena import ALIGNMENT
from jigsaw_jax.runtime.weights.carriers.block import Block, Blocks
from jigsaw_jax.runtime.weights.errors import CarrierError
from jigsaw_jax.runtime.weights.machines import machine
from jigsaw_jax.runtime.weights.piece import Piece, laid_out, split, write

# Machine, process, descriptor, inode, number of the use.
Ticket = tuple[str, int, int, int, int]


class SharedCarrier:
    """Writes pieces into blocks, and finds those of other processes; Linux alone.

    A payload that was dropped stays whole for receivers that have it, and is refused
    to others once its block is used again.
    """

    name = "shared"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses = itertools.count(1)
        self._used: dict[Ticket, Block] = {}
        # The oldest first.
        self._free: list[Block] = []
        self._others = Blocks()

    def put(self, key: str, pieces: Sequence[Piece], deadline_s: float) -> Ticket:
        """Write the pieces into a block."""
        del deadline_s
        size = ALIGNMENT + laid_out([piece.num_bytes for piece in pieces])[1]
        try:
            block = self._lease(size) or Block(size)
        except OSError as error:
            raise CarrierError(f"no shared memory for {key}: {error}") from error
        use = next(self._uses)
        block.pages[:8].view(np.uint64)[0] = use
        write(pieces, block.pages[ALIGNMENT:])
        block.unlock()
        ticket = (machine(), os.getpid(), block.file, block.inode, use)
        with self._lock:
            self._used[ticket] = block
        return ticket

    def get(
        self, ticket: Any, sizes: Sequence[int], deadline_s: float
    ) -> list[np.ndarray]:
        """See the pieces where they lie."""
        del deadline_s
        try:
            where, process, file, inode, use = ticket
            if where != machine():
                raise CarrierError("shared memory must be this machine's")
            pages = self._others.use(int(process), int(file), int(inode))
        except (OSError, TypeError, ValueError) as error:
            raise CarrierError(f"shared memory is gone: {error}") from error
        if int(pages[:8].view(np.uint64)[0]) != use:
            raise CarrierError("shared memory has another payload by now")
        return split(pages[ALIGNMENT:], sizes)

    def drop(self, ticket: Ticket) -> None:
        """Let the block be used again when no receiver has it."""
        with self._lock:
            block = self._used.pop(ticket, None)
            if block is None:
                return
            self._free.append(block)
            if len(self._free) > max(len(self._used), 1):
                # Receivers keep it, or its size is no longer asked for.
                self._free.pop(0)

    def _lease(self, size: int) -> Block | None:
        """A free block that fits and isn't mostly waste, locked."""
        with self._lock:
            for block in sorted(self._free, key=lambda block: len(block.pages)):
                if size <= len(block.pages) <= 2 * size and block.lock():
                    self._free.remove(block)
                    return block
        return None
