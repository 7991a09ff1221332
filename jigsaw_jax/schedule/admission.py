"""Which waiting request enters the sampler next.

O is the set of groups that have arrived and are not serving-complete; the frontier is
the F members of O with the lowest submission index. Source: RolloutPipe
(arXiv 2606.26997), frontier-group dispatch; "priority" is our reading of its figures,
"adaptive" is ours.

Whichever group is chosen stays so until its requests of one rank have entered, or as
many as there is `room` for.
"""

import dataclasses
import sys
from typing import ClassVar

from jigsaw_jax.schedule.gap import Gap
from jigsaw_jax.schedule.requests import Requests
from jigsaw_jax.settings import Pipeline


@dataclasses.dataclass(frozen=True)
class Fifo:
    """Requests enter in their order, by default as they arrived."""

    room: ClassVar[int] = sys.maxsize

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        return requests.first()


@dataclasses.dataclass(frozen=True)
class FrontierStrict:
    """A request enters if, and only if, its group is in the frontier.

    width: F.
    """

    room: ClassVar[int] = sys.maxsize
    width: int

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        return requests.first_of(requests.frontier(self.width))


@dataclasses.dataclass(frozen=True)
class FrontierPriority:
    """The frontier's requests enter first; others fill slots that are left.

    width: F.
    """

    room: ClassVar[int] = sys.maxsize
    width: int

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        order = requests.first_of(requests.frontier(self.width))
        return requests.first() if order is None else order


@dataclasses.dataclass(frozen=True)
class FrontierAdaptive:
    """As many samples at a time as F groups have, those of the first groups first.

    gap: between trainer and sampler; gives F.
    """

    gap: Gap

    @property
    def room(self) -> int:
        """How many may enter before the next is to be chosen anew."""
        return self.gap.limit - self.gap.running

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        return requests.first() if self.room > 0 else None


Admission = Fifo | FrontierStrict | FrontierPriority | FrontierAdaptive


def admission(settings: Pipeline, gap: Gap) -> Admission:
    """The rule that `Pipeline.admission` names; `gap` serves the adaptive one."""
    if settings.admission == "fifo":
        return Fifo()
    if settings.admission == "frontier_strict":
        return FrontierStrict(settings.frontier_groups)
    if settings.admission == "frontier_adaptive":
        return FrontierAdaptive(gap)
    return FrontierPriority(settings.frontier_groups)
