"""One hand-off of groups, shared between the learner and a helper.

    AccumulateGroups -> half of it to each -> both accumulated -> one GroupsAccumulated
    StepUpdate -> the helper's sums -> added -> the learner's step

A gradient is a sum over groups, so it does not matter who adds which. What a helper has
is lost with it, and the learner then adds those groups itself. Behind a step within a
round it lends the helper its weights, and the next hand-off waits for them.
"""

from collections.abc import Callable, Sequence

from jigsaw_jax.records import Group, GroupId, GroupsAccumulated, StepUpdate


class Shares:
    """Who still has to report what; for one thread at a time.

    Args:
      updates_per_round: with the weights of the first of which samplers sample.
      hand_out: is told that what is held need not wait any more.

    Attributes:
      held: a hand-off that is not handed out yet, and its update.
      helped: groups of the update that a helper has the sums of.
      step: waits for those sums.
      lending: the update whose weights are on their way to a helper, or -1.
      lent: the worker that has them, and the update.
    """

    def __init__(
        self, updates_per_round: int = 1, hand_out: Callable[[], None] = lambda: None
    ) -> None:
        self._updates_per_round = updates_per_round
        self._hand_out = hand_out
        self._whole: tuple[GroupId, ...] = ()
        self._parts: set[tuple[GroupId, ...]] = set()
        self._turn = 0
        self.helped: list[Group] = []
        self.step: StepUpdate | None = None
        self.held: tuple[Sequence[Group], int] | None = None
        self.lending = -1
        self.lent: tuple[str, int] | None = None

    def goes_on(self, update: int) -> bool:
        """Whether another update of the round follows, under weights of its own."""
        return (update + 1) % self._updates_per_round != 0

    def arrived(self, lent: tuple[str, int] | None) -> None:
        """Weights went to a helper for an update, or there is none to have them."""
        self.lent, self.lending = lent, -1
        self._hand_out()

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
