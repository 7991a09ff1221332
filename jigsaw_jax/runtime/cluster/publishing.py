"""Which version is under way to the samplers, and who still has to report it."""

import dataclasses
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

    @property
    def version(self) -> int:
        """Of the weights sent last; -1 before the first."""
        return -1 if self.weights is None else self.weights.version

    def begin(self, weights: Weights, workers: Iterable[str]) -> Weights:
        """A version goes out.

        Args:
          weights: as the learner offers them.
          workers: that must have them before the version is published.

        Returns:
          The same with what is frozen, which comes with a learner's first alone.
        """
        before = self.weights
        if weights.frozen is None and before is not None:
            weights = dataclasses.replace(
                weights, frozen=before.frozen, frozen_refs=before.frozen_refs
            )
        self.weights = weights
        self._awaited = set(workers)
        return weights

    def settle(self) -> None:
        """What has been sent is what is served; nobody waits for word of it."""
        self._awaited = None

    def drop(self, worker: str) -> None:
        """It has the version, or is gone."""
        if self._awaited is not None:
            self._awaited.discard(worker)

    def take_done(self) -> Weights | None:
        """The version under way once all have it; only once."""
        if self._awaited is None or self._awaited:
            return None
        self._awaited = None
        return self.weights
