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
      round: index of the current round.
      version: what the samplers serve.
      version_updates: updates that the weights of `version` hold.
      may_admit: whether samples may start now.
    """

    may_admit: ClassVar[bool] = True

    def __init__(self, settings: Pipeline, *, updates: int) -> None:
        self._settings = settings
        self._updates = updates
        self.round = 0
        self.version = 0
        self.version_updates = 0
        self._is_open = False
        self._empty_rounds = 0
        # Groups of the open round: at its opening, since then too, and trained.
        self._first = self._opened = self._trained = 0
        # The version under way to the samplers and the updates that it holds.
        self._sent: tuple[int, int] | None = None

    @property
    def opens_whole(self) -> bool:
        """A round opens with all its prompts at once, and refills one by one.

        So which groups a run has opened does not depend on when prompts came.
        """
        return not self._is_open

    def openings(self, now: Standing) -> int:
        """How many groups may open."""
        if self._is_open:
            return self._refills(now)
        return self._size if now.updates_done == self.version_updates else 0

    def opened(self, num: int) -> None:
        """Groups that `openings` allowed are open."""
        if self._is_open:
            self._opened += num
            return
        self._is_open = True
        self._first = self._opened = num
        self._trained = 0

    def stepped(self, num: int) -> None:
        """An update of `num` groups has been stepped."""
        self._trained += num

    def is_stopped_early(self, now: Standing) -> bool:
        """Never: a round's samples all have its version."""
        del now
        return False

    def wanted(self, now: Standing) -> int:
        """How many prompts should wait: those of the next round, at most."""
        if not self._is_open:
            return self._size
        refills = self._refills(now)
        size, per_update = self._settings.groups_per_round, self._per_update
        is_last = self.version_updates + -(-self._size // per_update) >= self._updates
        ahead = min(self._settings.prefetch_groups or size, size)
        return refills + (0 if is_last else ahead)

    def takeable(self, now: Standing) -> list[OpenGroup]:
        """The pending groups that may train now, in FIFO order."""
        is_barrier = self._settings.mode == "sync"
        is_open = len(now.pending) < len(now.groups) or self._is_refilling(now)
        if is_barrier and is_open:
            return []
        return list(now.pending)

    def is_tail(self, now: Standing) -> bool:
        """Whether no further group can join the update that is being filled."""
        return not now.groups and not self._is_refilling(now)

    def close(self, now: Standing) -> int | None:
        """End the round if it is over; the learner is idle between updates.

        Args:
          now: where the run stands.

        Returns:
          The version to publish, or None.
        """
        if self._sent is not None or now.groups or self._is_refilling(now):
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
            "first": self._first,
            "opened": self._opened,
            "trained": self._trained,
        }

    def restore(self, snapshot: dict[str, Any], *, updates_done: int) -> None:
        """Take over a snapshot; what ended a run for emptiness counts no more."""
        del updates_done
        self.round = snapshot["round"]
        self.version = snapshot["version"]
        self.version_updates = snapshot["version_updates"]
        self._is_open = snapshot["is_open"]
        self._empty_rounds = snapshot["empty_rounds"] % self._settings.empty_rounds_max
        # A snapshot of before there were refills has none of the three.
        self._first = snapshot.get("first", 0)
        self._opened = snapshot.get("opened", 0)
        self._trained = snapshot.get("trained", 0)
        self._sent = None

    def _refills(self, now: Standing) -> int:
        """New groups that the open round may have for those that it lost.

        A lost group is replaced once, up to `refill_groups_max` of them, and none is
        opened beyond what the run can still train.
        """
        if not self._is_open or not self._settings.refill_groups_max:
            return 0
        alive = now.filled + len(now.groups)
        refilled = self._opened - self._first
        num_lost = self._opened - self._trained - alive
        left = (self._updates - now.updates_done) * self._per_update - alive
        refill_max = self._settings.refill_groups_max - refilled
        return max(min(num_lost - refilled, refill_max, left), 0)

    def _is_refilling(self, now: Standing) -> bool:
        """Whether a group will join the round for one that it lost."""
        return self._refills(now) > 0 and not now.source.is_exhausted

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
