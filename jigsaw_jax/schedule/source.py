"""Prompts asked for ahead of need, with their positions in the data."""

import collections
from typing import Any

from jigsaw_jax.records import PromptsOffered, RequestPrompts


class Source:
    """The queue of prompts that no round has taken yet.

    A prompt's position in the data is also the submission index of its group.

    Attributes:
      position: prompts offered so far, so the position of the next one.
    """

    def __init__(self) -> None:
        self.position = 0
        self._waiting: collections.deque[tuple[str, int]] = collections.deque()
        self._asked: collections.deque[int] = collections.deque()
        self._is_end = False

    @property
    def is_exhausted(self) -> bool:
        """Whether no prompt waits and none will come."""
        return self._is_end and not self._waiting

    def can_give(self, num: int) -> bool:
        """Whether `num` prompts wait, or all that there will be."""
        return self._is_end or len(self._waiting) >= num

    def top_up(self, num: int) -> RequestPrompts | None:
        """Ask for what is missing to `num` waiting prompts, if anything is."""
        missing = num - len(self._waiting) - sum(self._asked)
        if self._is_end or missing <= 0:
            return None
        self._asked.append(missing)
        return RequestPrompts(num=missing)

    def offer(self, event: PromptsOffered) -> None:
        """Take the answer to the oldest request.

        Args:
          event: the prompts, in the order of the data.

        Raises:
          ValueError: more prompts than asked for, or nothing was asked.
        """
        num = self._asked.popleft() if self._asked else 0
        if len(event.uids) > num or (num == 0 and not event.is_end):
            raise ValueError(
                f"PromptsOffered.uids must have at most the {num} prompts that were "
                f"asked for, got {len(event.uids)}"
            )
        for uid in event.uids:
            self._waiting.append((uid, self.position))
            self.position += 1
        if event.is_end or len(event.uids) < num:
            self._is_end = True

    def take(self, num: int) -> list[tuple[str, int]]:
        """Take at most `num` waiting (uid, position) pairs."""
        return [self._waiting.popleft() for _ in range(min(num, len(self._waiting)))]

    def waiting(self) -> tuple[tuple[str, int], ...]:
        """The (uid, position) pairs that wait."""
        return tuple(self._waiting)

    def snapshot(self) -> dict[str, Any]:
        """JSON values; a request under way is not in it and is made again."""
        return {
            "position": self.position,
            "waiting": [list(pair) for pair in self._waiting],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over a snapshot; whether the data end is asked anew."""
        self.position = snapshot["position"]
        self._waiting = collections.deque(
            (uid, position) for uid, position in snapshot["waiting"]
        )
        self._asked.clear()
        self._is_end = False
