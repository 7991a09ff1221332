"""Rounds: R groups under one version, R/U updates, then the next version.

prompts wait --(R of them)--> OPEN: admitted, sampled, scored, judged
     ^                          |  sync: all R judged first
     |                          |  stream: each as soon as the learner is idle
VersionPublished                v
     |                        U groups accumulated, or the last 1..U: StepUpdate
     |                          |
PublishVersion(v + 1) <------ CLOSED: every group has trained or was dropped
(no update at all: an empty round; the next opens under the same version)
"""

from typing import Any, ClassVar

from jigsaw_jax.schedule.groups import OpenGroup
from jigsaw_jax.schedule.standing import Standing
from jigsaw_jax.settings import Pipeline


class Rounds:
    """The modes "sync" and "stream".

    Args:
      settings: R, U, the mode, the filter and the prefetch.
      updates: of the run.

    Attributes:
      opens_whole: a round opens with all its prompts at once, so that which groups a
        run has opened does not depend on when prompts came.
      round: index of the current round.
      version: what the samplers serve.
      version_updates: updates that the weights of `version` hold.
      may_admit: whether samples may start now.
    """

    opens_whole: ClassVar[bool] = True
    may_admit: ClassVar[bool] = True

    def __init__(self, settings: Pipeline, *, updates: int) -> None:
        self._settings = settings
        self._updates = updates
        self.round = 0
        self.version = 0
        self.version_updates = 0
        self._is_open = False
        self._empty_rounds = 0
        # The version under way to the samplers and the updates that it holds.
        self._sent: tuple[int, int] | None = None

    def openings(self, now: Standing) -> int:
        """How many groups may open."""
        is_due = not self._is_open and now.updates_done == self.version_updates
        return self._size if is_due else 0

    def opened(self) -> None:
        """The groups that `openings` allowed are open."""
        self._is_open = True

    def wanted(self, now: Standing) -> int:
        """How many prompts should wait: those of the next round, at most."""
        del now
        if not self._is_open:
            return self._size
        size, per_update = self._settings.groups_per_round, self._per_update
        is_last = self.version_updates + -(-self._size // per_update) >= self._updates
        return 0 if is_last else min(self._settings.prefetch_groups or size, size)

    def takeable(self, now: Standing) -> list[OpenGroup]:
        """The pending groups that may train now, in FIFO order."""
        is_barrier = self._settings.mode == "sync"
        if is_barrier and len(now.pending) < len(now.groups):
            return []
        return list(now.pending)

    def is_tail(self, now: Standing) -> bool:
        """Whether no further group can join the update that is being filled."""
        return not now.groups

    def close(self, now: Standing) -> int | None:
        """End the round if it is over; the learner is idle between updates.

        Args:
          now: where the run stands.

        Returns:
          The version to publish, or None.
        """
        if self._sent is not None or now.groups:
            return None
        is_empty = now.updates_done == self.version_updates
        if self._is_open:
            self._is_open = False
            self.round += 1
            self._empty_rounds = self._empty_rounds + 1 if is_empty else 0
        if is_empty:
            return None
        self._sent = self.version + 1, now.updates_done
        return self.version + 1

    def published(self, version: int) -> None:
        """The samplers serve `version`; one they have served before changes nothing.

        Args:
          version: as the samplers report it.

        Raises:
          ValueError: a version that was not sent.
        """
        if version <= self.version:
            return
        if self._sent is None or version != self._sent[0]:
            raise ValueError(
                f"VersionPublished.version must be the one sent, got {version!r} "
                f"while {self.version} is served"
            )
        self.version, self.version_updates = self._sent
        self._sent = None

    def accepts(self, group: OpenGroup, version: int) -> bool:
        """Whether a sample whose oldest token has this version may train."""
        del group
        return version == self.version

    def staleness(self, update: int, version: int) -> int:
        """Versions between a token's and the one that the learner's round has."""
        del update
        return self.version - version

    def rounds_trained(self, now: Standing) -> int:
        """Rounds that are over, and the one under way if it has had an update."""
        return self.round + (self._is_open and now.updates_done > self.version_updates)

    def empty_rounds(self, now: Standing) -> int:
        """Rounds in a row that had nothing to train."""
        del now
        return self._empty_rounds

    def snapshot(self) -> dict[str, Any]:
        """JSON values; a version under way is not in it and is sent again."""
        return {
            "round": self.round,
            "version": self.version,
            "version_updates": self.version_updates,
            "is_open": self._is_open,
            "empty_rounds": self._empty_rounds,
        }

    def restore(self, snapshot: dict[str, Any], *, updates_done: int) -> None:
        """Take over a snapshot; what ended a run for emptiness counts no more."""
        del updates_done
        self.round = snapshot["round"]
        self.version = snapshot["version"]
        self.version_updates = snapshot["version_updates"]
        self._is_open = snapshot["is_open"]
        self._empty_rounds = snapshot["empty_rounds"] % self._settings.empty_rounds_max
        self._sent = None

    @property
    def _per_update(self) -> int:
        return self._settings.groups_per_update

    @property
    def _size(self) -> int:
        """Groups of the round; with "keep" the run's last has only what it trains."""
        size = self._settings.groups_per_round
        if self._settings.filter == "keep":
            left = (self._updates - self.version_updates) * self._per_update
            return min(size, left)
        return size
