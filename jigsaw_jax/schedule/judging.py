"""The verdict on groups whose samples are all scored: train, draw anew, or give up."""

import heapq

from jigsaw_jax.records import GroupId
from jigsaw_jax.schedule.groups import OpenGroup, verdict
from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.schedule.sampling import Sampling
from jigsaw_jax.schedule.standing import Standing
from jigsaw_jax.settings import Pipeline


class Judging:
    """Moves complete groups to the pending FIFO, or ends them.

    Args:
      settings: the filter, redraws and the reduction.
      now: where the run stands; `pending` and `barren` are written.
      ledger: of the run.
      sampling: has the open groups.
      updates: of the run.
    """

    def __init__(
        self,
        settings: Pipeline,
        now: Standing,
        *,
        ledger: Ledger,
        sampling: Sampling,
        updates: int,
    ) -> None:
        self._settings = settings
        self._now = now
        self._ledger = ledger
        self._sampling = sampling
        self._updates = updates
        # Orders that were or are to be judged; only needed where that goes in order.
        self._in_order: list[int] = []

    def opened(self, order: int) -> None:
        """A group waits for a verdict from now on."""
        if self._settings.reduction == "ordered":
            heapq.heappush(self._in_order, order)

    def judge(self) -> None:
        """Judge what is complete; in the order of submission where updates are."""
        while self._sampling.complete:
            order = self._sampling.complete[0]
            if self._settings.reduction == "ordered":
                order = self._lowest()
                if order not in self._sampling.complete or self._is_enough():
                    return
            self._pass_or_drop(self._sampling.groups[order])

    def _lowest(self) -> int:
        """The lowest order of the open groups that have no verdict."""
        while True:
            group = self._sampling.groups.get(self._in_order[0])
            if group is not None and not group.is_judged:
                return group.order
            heapq.heappop(self._in_order)

    def _is_enough(self) -> bool:
        """Whether the run can train no more than has been judged.

        In order, verdicts past the run's last group would depend on timing. A barrier
        has no such end: it opens when all are judged.
        """
        done = self._now.updates_done
        left = (self._updates - done) * self._settings.groups_per_update
        num_judged = len(self._now.pending) + self._now.filled
        return self._settings.mode != "sync" and num_judged >= left

    def _pass_or_drop(self, group: OpenGroup) -> None:
        reason = verdict(
            [member.value for member in group.members], self._settings.filter
        )
        if reason is None:
            group.is_judged = True
            self._sampling.complete.remove(group.order)
            self._ledger.ready(group.id)
            self._now.pending.append(group)
            return
        self._sampling.drop(group.order, reason)
        uid, draw = group.id
        if reason == "zero_variance" and draw < self._settings.redraws_max:
            again = self._ledger.open(GroupId(uid, draw + 1), group.order)
            self._sampling.add(again)
            self.opened(again.order)
        else:
            self._now.barren += 1
