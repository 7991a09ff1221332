"""Which waiting request enters the sampler next.

O is the set of groups that have arrived and are not serving-complete; the frontier is
the F members of O with the lowest submission index. Source: RolloutPipe
(arXiv 2606.26997), frontier-group dispatch; "priority" is our reading of its figures,
"adaptive" is ours.
"""

import dataclasses

from jigsaw_jax.schedule.gap import Gap
from jigsaw_jax.schedule.requests import Requests
from jigsaw_jax.settings import Pipeline


@dataclasses.dataclass(frozen=True)
class Fifo:
    """Requests enter in their order, by default as they arrived."""

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        return requests.first()


@dataclasses.dataclass(frozen=True)
class FrontierStrict:
    """A request enters if, and only if, its group is in the frontier.

    width: F.
    """

    width: int

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        return requests.first_of(requests.frontier(self.width))


@dataclasses.dataclass(frozen=True)
class FrontierPriority:
    """The frontier's requests enter first; others fill slots that are left.

    width: F.
    """

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

    def choose(self, requests: Requests) -> int | None:
        """The group whose earliest request enters next, or None."""
        return requests.first() if self.gap.running < self.gap.limit else None


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
