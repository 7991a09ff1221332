"""Which page belongs to which slot; the host's side of a paged cache.

    place ──> take ──> (grow) ──> give_back
    fits?     reserve             free, the shared ones with their last slot

A slot gets all the pages that its request may come to need when it is admitted, its
prompt's and those of its cap, so that no slot ever waits for a page: whatever is
admitted ends, and then its pages are free. What isn't admitted waits outside, and a
longest trajectory fits in an empty pool; so nothing waits for ever.

Slots that take one prefix share the pages that its tokens fill. The page that the first
sampled token goes into is a slot's own, with a copy of the prompt's last tokens in it.
"""

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np


@dataclasses.dataclass(slots=True)
class _Shared:
    """Pages that a prefix fills, and how many slots use them."""

    pages: list[int]
    users: int = 0


class PageTable:
    """Pages of all slots. Numbers count over all replicas, and so do slots.

    Args:
      num_slots: B, a multiple of `replicas`.
      pages_per_slot: O, of a longest trajectory.
      page_size: tokens of a page.
      num_pages: Z, a multiple of `replicas`; the first of each replica's stays zero.
      replicas: each has a run of slots and of pages.

    Attributes:
      tables_BO: page numbers by slot; the zero page where a slot has none.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        pages_per_slot: int,
        page_size: int,
        num_pages: int,
        replicas: int,
    ) -> None:
        self._page_size, self._num_pages = page_size, num_pages
        self._slots_each = num_slots // replicas
        each = num_pages // replicas
        self._free = [
            list(range((i + 1) * each - 1, i * each, -1)) for i in range(replicas)
        ]
        self._own: dict[int, list[int]] = {}
        self._prefix_of: dict[int, tuple[int, Hashable]] = {}
        self._shared: dict[tuple[int, Hashable], _Shared] = {}
        zero_B = np.arange(num_slots, dtype=np.int32) // self._slots_each * each
        self._zero_B = zero_B
        self.tables_BO = np.repeat(zero_B[:, None], pages_per_slot, axis=1)

    @property
    def num_free(self) -> int:
        """Pages that no slot has."""
        return sum(map(len, self._free))

    def place(
        self,
        free: Sequence[int],
        prefix: Hashable | None,
        num_shared: int,
        tokens: Sequence[int],
    ) -> list[int]:
        """Slots for as many requests of one prefix, in order, as there are pages for.

        Args:
          free: slots to choose from, which hold no pages.
          prefix: names the prefix; None shares nothing.
          num_shared: tokens of it that all its slots share.
          tokens: that each request may come to hold, the shared ones included.

        Returns:
          Slots of the first requests. Nothing is taken.
        """
        slots, chosen = list(free), []
        room = [len(pages) for pages in self._free]
        holds = {replica for replica, name in self._shared if name == prefix}
        shared = num_shared // self._page_size if prefix is not None else 0
        for needed in map(self._num_pages_of, tokens):

            def left(slot: int, needed: int = needed) -> tuple[bool, int]:
                """Whether the prefix is there, and the pages that would be left."""
                at = self._replica(slot)
                has = at in holds
                return has, room[at] - needed + (shared if has else 0)

            fitting = [slot for slot in slots if left(slot)[1] >= 0]
            if not fitting:
                break
            best = max(fitting, key=left)
            replica = self._replica(best)
            room[replica] = left(best)[1]
            holds.add(replica)
            slots.remove(best)
            chosen.append(best)
        return chosen

    def take(
        self,
        slot: int,
        tokens: int,
        *,
        prefix: Hashable | None = None,
        num_shared: int = 0,
    ) -> np.ndarray:
        """Gives a slot its pages; those that it had are free again.

        Args:
          slot: which.
          tokens: that it may come to hold.
          prefix: names the prefix; None shares nothing.
          num_shared: tokens of it that all its slots share.

        Returns:
          int32 [O]: the numbers of the pages to write; Z at a page that is not the
          slot's, or that holds what it should already.

        Raises:
          ValueError: there are too few free pages; `place` would have said so.
        """
        self.give_back(slot)
        replica, total = self._replica(slot), self._num_pages_of(tokens)
        key = (replica, prefix)
        num_shared = num_shared // self._page_size if prefix is not None else 0
        known = self._shared.get(key) if num_shared else None
        needed = total - (num_shared if known else 0)
        pages = self._pop(replica, needed)
        rows_O = np.full(self.tables_BO.shape[1], self._num_pages, np.int32)
        if num_shared:
            if known is None:
                known = self._shared[key] = _Shared(pages[:num_shared])
                rows_O[:num_shared], pages = known.pages, pages[num_shared:]
            known.users += 1
            self._prefix_of[slot] = key
            self.tables_BO[slot, :num_shared] = known.pages
        rows_O[num_shared:total] = self.tables_BO[slot, num_shared:total] = pages
        self._own[slot] = pages
        return rows_O

    def grow(self, slot: int, tokens: int) -> np.ndarray:
        """Adds pages to a slot for an observation; the numbers to write, as `take`.

        Args:
          slot: which; it has pages.
          tokens: that it may come to hold now.

        Returns:
          int32 [O]: the slot's own pages; Z at those that it shares or has not.

        Raises:
          ValueError: the slot has no pages any more, or there are too few free ones.
        """
        if slot not in self._own:
            raise ValueError(f"slot {slot} must hold a sequence to be extended")
        num_shared, num = self._extent(slot)
        total = max(self._num_pages_of(tokens), num)
        pages = self._pop(self._replica(slot), total - num)
        self.tables_BO[slot, num:total] = pages
        self._own[slot] += pages
        rows_O = np.full(self.tables_BO.shape[1], self._num_pages, np.int32)
        rows_O[num_shared:total] = self._own[slot]
        return rows_O

    def give_back(self, slot: int) -> None:
        """Frees a slot's own pages, and shared ones that no other slot uses."""
        if slot not in self._own:
            return
        free = self._free[self._replica(slot)]
        free += reversed(self._own.pop(slot))
        self.tables_BO[slot] = self._zero_B[slot]
        key = self._prefix_of.pop(slot, None)
        if key is None:
            return
        shared = self._shared[key]
        shared.users -= 1
        if not shared.users:
            free += reversed(shared.pages)
            del self._shared[key]

    def _extent(self, slot: int) -> tuple[int, int]:
        """(shared pages, all pages) of a slot."""
        key = self._prefix_of.get(slot)
        num_shared = len(self._shared[key].pages) if key else 0
        return num_shared, num_shared + len(self._own[slot])

    def _pop(self, replica: int, num: int) -> list[int]:
        free = self._free[replica]
        if num > len(free):
            raise ValueError(
                f"Sampler.num_pages must leave {num} pages free, got {len(free)}; wait "
                "for a slot to end, or take more pages or fewer slots"
            )
        pages = free[len(free) - num :]
        del free[len(free) - num :]
        return pages[::-1]

    def _replica(self, slot: int) -> int:
        return slot // self._slots_each

    def _num_pages_of(self, tokens: int) -> int:
        """Pages of a sequence; what is longer than a slot ends before."""
        return min(-(-tokens // self._page_size), self.tables_BO.shape[1])
