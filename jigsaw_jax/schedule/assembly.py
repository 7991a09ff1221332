"""The update under way: which groups it has, and what the learner is doing."""

from collections.abc import Sequence

from jigsaw_jax.records import (
    AccumulateGroups,
    GroupId,
    GroupsAccumulated,
    StepUpdate,
    UpdateStepped,
)
from jigsaw_jax.schedule.groups import OpenGroup


class Assembly:
    """One update after the other; at most one command is with the learner.

    Attributes:
      updates_done: updates stepped, so the index of the one under way.
      groups: groups of the update under way, in the order of their hand-off.
    """

    def __init__(self) -> None:
        self.updates_done = 0
        self.groups: list[OpenGroup] = []
        self._handed: tuple[GroupId, ...] = ()
        self._is_stepping = False

    @property
    def is_busy(self) -> bool:
        """Whether the learner has work that it has not reported done."""
        return bool(self._handed) or self._is_stepping

    def hand(self, groups: Sequence[OpenGroup]) -> AccumulateGroups:
        """Add whole groups to the update."""
        assert groups
        assert not self.is_busy
        self.groups += groups
        self._handed = tuple(group.id for group in groups)
        return AccumulateGroups(
            groups=self._handed,
            orders=tuple(group.order for group in groups),
            update=self.updates_done,
        )

    def accumulated(self, event: GroupsAccumulated) -> bool:
        """The learner is idle again.

        Args:
          event: the learner's report.

        Returns:
          False where it is one of another hand-off, which changes nothing.
        """
        is_of_now = event.update == self.updates_done and event.groups == self._handed
        if not self._handed or not is_of_now:
            return False
        self._handed = ()
        return True

    def step(self) -> StepUpdate:
        """Close the update, which has at least one group."""
        assert self.groups
        assert not self.is_busy
        self._is_stepping = True
        groups = tuple(group.id for group in self.groups)
        return StepUpdate(update=self.updates_done, groups=groups)

    def stepped(self, event: UpdateStepped) -> list[OpenGroup]:
        """Begin the next update.

        Args:
          event: the learner's report.

        Returns:
          The groups that have trained; none where the report is a duplicate.

        Raises:
          ValueError: an update that was not asked for.
        """
        if event.update < self.updates_done:
            return []
        if not self._is_stepping or event.update > self.updates_done:
            raise ValueError(
                f"UpdateStepped.update must be one that was asked for, "
                f"got {event.update!r} while {self.updates_done} is under way"
            )
        self._is_stepping = False
        self.updates_done += 1
        trained, self.groups = self.groups, []
        return trained


def fifo_prefix(
    groups: Sequence[OpenGroup], *, places: int, token_budget: int
) -> list[OpenGroup]:
    """The longest prefix of whole groups for one hand-off.

    Args:
      groups: in FIFO order.
      places: groups that the update can still take.
      token_budget: sampled tokens in all; 0 is no limit, and a first group that is
        larger still passes alone.

    Returns:
      At least one group where there is one and a place for it.
    """
    prefix: list[OpenGroup] = []
    num_tokens = 0
    for group in groups[:places]:
        num_tokens += group.num_tokens
        if prefix and token_budget and num_tokens > token_budget:
            break
        prefix.append(group)
    return prefix
