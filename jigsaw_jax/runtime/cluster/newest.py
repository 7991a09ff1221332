"""Offers of the newest version, kept by the learner for whoever asks for them.

    learner thread --put--> Newest <--get--  [offers thread]  <==Ray== Source, a sampler

Objects of Ray's have to be named by a call of Ray's, which counts who has them. So a
sampler asks the learner itself, and the controller says by line alone that there is
something to ask for.
"""

import threading
from typing import Any


class Newest:
    """What trains, of one version; what is frozen, for samplers that have none yet.

    Samplers that have asked keep what they were given, so nothing older is kept here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = -1
        self._trained: Any = None
        self._frozen: Any = None

    def put(self, version: int, trained: Any, frozen: Any) -> None:
        """Have these from now on, before anybody is told of the version.

        Args:
          version: of them; the same once more where it is offered again.
          trained: the offer of what trains, as `offers.put` made it.
          frozen: that of what is frozen; None leaves the one before.
        """
        with self._lock:
            self._version, self._trained = version, trained
            if frozen is not None:
                self._frozen = frozen

    def get(self, version: int, with_frozen: bool) -> list[Any] | None:
        """What was put of a version.

        Args:
          version: that is wanted.
          with_frozen: whether what is frozen is, too.

        Returns:
          One offer or two; None where another version has taken its place.
        """
        with self._lock:
            if version != self._version:
                return None
            return [self._trained, self._frozen] if with_frozen else [self._trained]
