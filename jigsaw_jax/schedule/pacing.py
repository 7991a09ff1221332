"""Bounded staleness by pacing: what is admitted can always train in time.

Update n trains weights that hold n updates and is published as version n + 1. A group
first admitted under version v may train in updates up to its deadline v + S. Two rules
keep that, and nothing is ever discarded for its age (docs/pipeline.md has the proof):

    admission   groups not dropped, ever, at most (S + version + 1) U
    hand-off    for all d >= n: open groups of deadline <= d, at most the free places
                of updates n..d
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from jigsaw_jax.schedule.groups import OpenGroup
from jigsaw_jax.schedule.standing import Standing
from jigsaw_jax.settings import Pipeline


def capacity(
    settings: Pipeline, *, version: int, updates_done: int, outstanding: int
) -> int:
    """How many groups may be admitted now.

    This is (S + version + 1) U, or with an over-issue of O < S U groups
    (version + 1) U + O, less the groups admitted and not dropped, where those
    that have trained are counted as updates: a counter that restarts with a process
    would let hundreds of groups in.

    Args:
      settings: S, U and O.
      version: what the samplers serve.
      updates_done: updates stepped, of U groups each.
      outstanding: groups admitted, neither dropped nor in an update that has stepped.

    Returns:
      A number of groups, 0 or more.
    """
    size = settings.groups_per_update
    ahead = settings.over_issue_groups or settings.staleness_max * size
    return max((version + 1 - updates_done) * size + ahead - outstanding, 0)


def latest_in_time(
    counts: Mapping[int, int], *, update: int, free: int, size: int
) -> int:
    """The latest deadline of a group that may take a place without making others late.

    A group with a deadline takes a place that those with earlier ones may need. So it
    is in time where, for each earlier update, the groups that must have trained by then
    leave a place over.

    Args:
      counts: open groups by deadline, the last update that may train them.
      update: index of the update that is being filled.
      free: places left in it.
      size: places of each later update.

    Returns:
      A deadline; groups of this one and of earlier ones are in time.
    """
    due, latest = 0, max(counts, default=update)
    for last in range(update, latest):
        due += counts.get(last, 0)
        if due > free - 1 + (last - update) * size:
            return last
    return latest


class Pacing:
    """The mode "async": a round is one update, R = U.

    Args:
      settings: S, U, the prefetch and the reduction.
      updates: of the run.

    Attributes:
      opens_whole: groups open one by one.
      round: updates whose weights were sent to the samplers.
      version: what the samplers serve; also the updates that its weights hold.
      may_admit: whether samples may start now; not before the weights of a restored
        run are served under their own version.
    """

    opens_whole: ClassVar[bool] = False

    def __init__(self, settings: Pipeline, *, updates: int) -> None:
        self._settings = settings
        self._updates = updates
        self.round = 0
        self.version = 0
        self.may_admit = True

    @property
    def version_updates(self) -> int:
        """Updates that the weights of `version` hold."""
        return self.version

    def openings(self, now: Standing) -> int:
        """How many groups may open."""
        return capacity(
            self._settings,
            version=self.version,
            updates_done=now.updates_done,
            outstanding=now.filled + len(now.groups),
        )

    def opened(self, num: int) -> None:
        """Groups that `openings` allowed are open."""

    def stepped(self, num: int) -> None:
        """An update of `num` groups has been stepped."""

    def is_stopped_early(self, now: Standing) -> bool:
        """Whether samples must rest: the update is full, its version not yet served."""
        is_full = now.filled == self._settings.groups_per_update
        is_behind = self.version < now.updates_done
        return self._settings.early_stop and (is_full or is_behind)

    def wanted(self, now: Standing) -> int:
        """How many prompts should wait: one update's, at most, beyond `openings`.

        And no more than the rest of the run needs beyond the open groups.
        """
        size = self._settings.groups_per_update
        ahead = min(self._settings.prefetch_groups or size, size)
        left = (self._updates - now.updates_done) * size
        needed = left - now.filled - len(now.groups)
        return min(self.openings(now) + ahead, needed)

    def takeable(self, now: Standing) -> list[OpenGroup]:
        """The pending groups that may train now, in FIFO order."""
        size, ahead = self._settings.groups_per_update, self._settings.staleness_max
        counts = {version + ahead: num for version, num in now.versions.items()}
        free = size - now.filled
        taken: list[OpenGroup] = []
        latest = -1
        for group in now.pending:
            if len(taken) == free:
                break
            assert group.version is not None
            deadline = group.version + ahead
            assert deadline >= now.updates_done
            if latest < 0:
                latest = latest_in_time(
                    counts, update=now.updates_done, free=free - len(taken), size=size
                )
            if deadline <= latest:
                taken.append(group)
                counts[deadline] -= 1
                latest = -1
                continue
            # Groups are admitted in order, so the next in order is always in time.
            assert self._settings.reduction != "ordered"
        return taken

    def is_tail(self, now: Standing) -> bool:
        """Whether no further group can join the update that is being filled."""
        return now.source.is_exhausted and not now.groups

    def close(self, now: Standing) -> int | None:
        """The version to publish, if an update has been stepped, or None."""
        if self.round == now.updates_done:
            return None
        self.round = now.updates_done
        return self.round

    def published(self, version: int) -> None:
        """The samplers serve `version`; one they have served before changes nothing.

        Args:
          version: as the samplers report it.

        Raises:
          ValueError: a version that was not sent.
        """
        if version > self.round:
            raise ValueError(
                f"VersionPublished.version must be at most the {self.round} sent, "
                f"got {version!r}"
            )
        self.version = max(self.version, version)
        self.may_admit = self.may_admit or self.version == self.round

    def accepts(self, group: OpenGroup, version: int) -> bool:
        """Whether a sample whose oldest token has this version may train."""
        return group.version is not None and group.version <= version <= self.round

    def staleness(self, update: int, version: int) -> int:
        """Updates between a token's weights and those that train on it."""
        return update - version

    def rounds_trained(self, now: Standing) -> int:
        """Each update is a round of its own."""
        return now.updates_done

    def empty_rounds(self, now: Standing) -> int:
        """Times U groups that were given up in a row."""
        return now.barren // self._settings.groups_per_update

    def snapshot(self) -> dict[str, Any]:
        """JSON values; a version under way is not in it and is sent again."""
        return {"version": self.version}

    def restore(self, snapshot: dict[str, Any], *, updates_done: int) -> None:
        """Take over a snapshot made after `updates_done` updates."""
        self.version = self.round = snapshot["version"]
        self.may_admit = self.version == updates_done
