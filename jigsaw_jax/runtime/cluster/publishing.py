"""Which version is under way to the samplers, and who still has to report it."""

from collections.abc import Iterable

from jigsaw_jax.runtime.cluster.offers import Weights


class Publishing:
    """One version at a time; for one thread at a time.

    Attributes:
      weights: that the samplers have or are being sent; None before the first.
    """

    def __init__(self) -> None:
        self.weights: Weights | None = None
        self._awaited: set[str] | None = None
        self._served = -1

    @property
    def version(self) -> int:
        """Of the weights sent last; -1 before the first."""
        return -1 if self.weights is None else self.weights.version

    def begin(self, weights: Weights, workers: Iterable[str]) -> None:
        """A version goes out, published once all these workers have it."""
        self.weights = weights
        self._awaited = set(workers)

    def settle(self) -> None:
        """What has been sent is what is served; nobody waits for word of it."""
        self._awaited, self._served = None, self.version

    def drop(self, worker: str) -> None:
        """It has the version, or is gone."""
        if self._awaited is not None:
            self._awaited.discard(worker)

    def take_done(self) -> Weights | None:
        """The version under way once all have it; only once.

        Not where it was served before, and sent again to one that came too late for it.
        """
        if self._awaited is None or self._awaited:
            return None
        self._awaited = None
        if self.version <= self._served:
            return None
        self._served = self.version
        return self.weights
