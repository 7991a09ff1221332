"""Large memory that is touched once and used again when nothing refers to it.

The first write to a page costs several times the copy (measured here: 500 MB into new
memory 0.4 to 1 s, into used memory 0.1 s), and every version needs as much as the last.
A lease is returned by the garbage collector, so memory under a live array, also one of
JAX that shares it, is never handed out again.
"""

import collections
import mmap
import weakref

import numpy as np

ALIGNMENT = 64


class Arena:
    """Leases bytes; any thread may call it, and any thread may drop a lease.

    Args:
      free_max: blocks kept while nobody leases them.
    """

    def __init__(self, free_max: int = 2) -> None:
        # Finalizers run in the middle of anything, so there is no lock to wait for:
        # a deque's own operations are atomic.
        self._free: collections.deque[mmap.mmap] = collections.deque()
        self._free_max = free_max

    def lease(self, num_bytes: int) -> np.ndarray:
        """Bytes, aligned to pages, with anything in them.

        Args:
          num_bytes: how many.

        Returns:
          Unsigned bytes; all views of them together are the lease.
        """
        block = self._take(num_bytes)
        if block is None:
            # An empty mapping is refused.
            block = mmap.mmap(-1, max(num_bytes, 1))
            if hasattr(mmap, "MADV_HUGEPAGE"):
                block.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(block, np.uint8)
        weakref.finalize(whole, self._give_back, block)
        return whole[:num_bytes]

    def _take(self, num_bytes: int) -> mmap.mmap | None:
        """A free block that fits and isn't mostly waste."""
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:
                return None
            if num_bytes <= len(block) < 2 * num_bytes:
                return block
            self._free.append(block)
        return None

    def _give_back(self, block: mmap.mmap) -> None:
        self._free.append(block)
        if len(self._free) > self._free_max:
            # The oldest: a size that is no longer asked for doesn't stay for ever.
            self._free.popleft()


def aligned(num_bytes: int) -> int:
    """The next offset at which an array may start that JAX is to take as it is."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
