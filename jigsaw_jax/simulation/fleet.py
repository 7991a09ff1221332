"""Which sampler workers there are, how fast each is, and when it fails."""

import dataclasses
from collections.abc import Callable

from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import chance
from jigsaw_jax.simulation.cost import Decode


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One sampler worker as it is when it is well.

    Attributes:
      name: as the pipeline knows it.
      slots: sequences at once.
      tensor: chips.
      speed: 1, or another where the pool or the straggler has one.
      decode: costs at speed 1.
    """

    name: str
    slots: int
    tensor: int
    speed: float
    decode: Decode


def members(
    train: Train, seed: int, decode: Callable[[int, int], Decode]
) -> list[Member]:
    """The workers of a run.

    Args:
      train: the run.
      seed: of the stragglers.
      decode: from (slots, chips) to what such a worker's decode steps cost.

    Returns:
      At least one.
    """
    fleet = train.simulation.fleet
    pools = fleet.pools or {"sampler": {"workers": fleet.workers}}
    found = []
    for pool, given in pools.items():
        slots = given.get("slots", train.sampler.slots)
        tensor = given.get("tensor", train.mesh.sampler_tensor)
        costs = decode(slots, tensor)
        for index in range(given.get("workers", 1)):
            name = f"{pool}/{index}"
            is_slow = (
                fleet.straggler_share > 0
                and chance.uniform(seed, "slow", name) < fleet.straggler_share
            )
            speed = given.get("speed", 1.0) * (fleet.straggler_speed if is_slow else 1)
            found.append(
                Member(name=name, slots=slots, tensor=tensor, speed=speed, decode=costs)
            )
    return found


def lifetime_s(train: Train, seed: int, name: str, life: int) -> float | None:
    """How long a worker works until it fails, the `life`-th time; None is for ever."""
    mean_s = train.simulation.fleet.failure_every_s
    if not mean_s:
        return None
    return chance.exponential(mean_s, seed, "life", name, life)
