"""What the control loop does in parts, so that it hears what comes in between."""

import collections
from collections.abc import Callable, Iterator


class Errands:
    """Work that is cut into parts, each in a turn of its own.

    One piece of work after the other, in the order in which they were added.

    Args:
      post: puts this into the control loop's queue, behind what has come; it then calls
        `go_on`.
    """

    def __init__(self, post: Callable[["Errands"], None]) -> None:
        self._post = post
        self._is_posted = False
        self._waiting: collections.deque[Iterator[None]] = collections.deque()

    def add(self, work: Iterator[None]) -> None:
        """Begin soon, behind what waits already.

        Args:
          work: yields between its parts.
        """
        self._waiting.append(work)
        self._post_once()

    def go_on(self) -> None:
        """Do a part."""
        self._is_posted = False
        if self._waiting:
            self._do_part()
        self._post_once()

    def finish(self) -> None:
        """Do all that waits now."""
        while self._waiting:
            self._do_part()

    def _do_part(self) -> None:
        for _ in self._waiting[0]:
            return
        self._waiting.popleft()

    def _post_once(self) -> None:
        if self._waiting and not self._is_posted:
            self._is_posted = True
            self._post(self)
