"""All costs of a run, from constants, a plan, a recorded run, or arithmetic."""

import dataclasses
import functools

from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import analytic, fleet, recorded
from jigsaw_jax.simulation.cost import (
    Decode,
    Training,
    constant_decode,
    constant_training,
)
from jigsaw_jax.simulation.fleet import Member


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prices:
    """What a simulated run is made of.

    Attributes:
      members: sampler workers.
      training: the learner's work.
    """

    members: list[Member]
    training: Training

    @functools.cached_property
    def kinds(self) -> list[tuple[Member, int]]:
        """One worker of each kind, and how many there are of it."""
        found: dict[tuple[int, float, int], tuple[Member, int]] = {}
        for member in self.members:
            # The workers of a pool share one object of costs.
            key = member.slots, member.speed, id(member.decode)
            first, count = found.get(key, (member, 0))
            found[key] = first, count + 1
        return list(found.values())

    def scaled(self, decode: float, training: float) -> "Prices":
        """Sampling and training that take other times, by two factors."""
        if decode == training == 1:
            return self
        members = [
            dataclasses.replace(member, speed=member.speed / decode)
            for member in self.members
        ]
        return Prices(members=members, training=self.training.scaled(training))


def prices(train: Train, seed: int = 0) -> Prices:
    """The costs that `Costs.source` names.

    Args:
      train: the run.
      seed: of the stragglers.

    Returns:
      Workers and the learner's work.

    Raises:
      CostError: a file that is named can't be read, or lacks what is needed.
    """
    source = train.simulation.costs.source
    if source == "analytic" or source == "plan":
        model = analytic.model_of(train)
        return Prices(
            members=fleet.members(train, seed, model.decode),
            training=model.training(),
        )
    if source == "run":
        decode, training = recorded.costs(train)
    else:
        decode, training = constant_decode(train), constant_training(train)

    def same(slots: int, tensor: int) -> Decode:
        del slots, tensor
        return decode

    return Prices(
        members=fleet.members(train, seed, same),
        training=training,
    )
