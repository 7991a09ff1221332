"""One hand-off of groups, shared between the learner and a helper.

    AccumulateGroups -> half of it to each -> both accumulated -> one GroupsAccumulated
    StepUpdate -> the helper's sums -> added -> the learner's step

A gradient is a sum over groups, so it does not matter who adds which. What a helper has
is lost with it, and the learner then adds those groups itself.
"""

from collections.abc import Sequence

from jigsaw_jax.records import Group, GroupId, GroupsAccumulated, StepUpdate


class Shares:
    """Who still has to report what; for one thread at a time.

    Attributes:
      helped: groups of the update that a helper has the sums of.
      step: waits for those sums.
    """

    def __init__(self) -> None:
        self._whole: tuple[GroupId, ...] = ()
        self._parts: set[tuple[GroupId, ...]] = set()
        self._turn = 0
        self.helped: list[Group] = []
        self.step: StepUpdate | None = None

    def hand(
        self, groups: Sequence[Group], *, has_helper: bool
    ) -> tuple[Sequence[Group], Sequence[Group]]:
        """Share groups out.

        Args:
          groups: of one hand-off.
          has_helper: whether there is one.

        Returns:
          The learner's part and the helper's; one group alone goes to each in turn.
        """
        self._turn += 1
        half = (len(groups) + self._turn % 2) // 2 if has_helper else 0
        own, helped = groups[half:], groups[:half]
        self._whole = _ids(groups)
        self._parts = {_ids(part) for part in (own, helped) if part}
        self.helped.extend(helped)
        return own, helped

    def accumulated(self, event: GroupsAccumulated) -> GroupsAccumulated | None:
        """The report on a whole hand-off, once all parts of it are reported."""
        if event.groups not in self._parts:
            return None
        self._parts.remove(event.groups)
        if self._parts:
            return None
        return GroupsAccumulated(
            now_s=event.now_s, groups=self._whole, update=event.update
        )

    def take_step(self) -> StepUpdate | None:
        """The step that waits, if one does; the helper's sums are in."""
        step, self.step = self.step, None
        self.helped.clear()
        return step


def _ids(groups: Sequence[Group]) -> tuple[GroupId, ...]:
    return tuple(group.id for group in groups)
