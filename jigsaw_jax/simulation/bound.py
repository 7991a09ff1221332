"""The least time that a round can take, whatever the policy.

    max(least possible rollout + training of the last group,
        earliest possible first group + all training)

The least possible rollout is all sampling work shared out over all workers without a
gap, or the longest completion alone on the fastest worker. The earliest possible first
group is the one that takes least with all workers to itself, its reward included. Nothing waits, nothing is in anything's way. So no order of admission,
no hand-off and no width of a frontier gets below it, and a run can be measured by it.
"""

import dataclasses
from collections.abc import Sequence

from jigsaw_jax.settings import Train
from jigsaw_jax.simulation.cost import Decode
from jigsaw_jax.simulation.prices import Prices
from jigsaw_jax.simulation.trace import Window


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Seconds from a round's first admission to its last gradient, at least.

    Attributes:
      rollout_s: least possible rollout.
      last_s: training of the last group.
      first_s: earliest possible first group.
      training_s: of all groups.
    """

    rollout_s: float
    last_s: float
    first_s: float
    training_s: float

    @property
    def seconds(self) -> float:
        """The larger of the two sums."""
        return max(self.rollout_s + self.last_s, self.first_s + self.training_s)


def bound(train: Train, prices: Prices, window: Window) -> Bound:
    """The bound of a round that was simulated.

    Args:
      train: the run.
      prices: its costs.
      window: the round; what was sampled and trained in it counts.

    Returns:
      Its parts; without anything trained, only the rollout.
    """
    work = train.simulation.workload
    trained = window.trained or []
    groups = {g: n for g, n in window.sampled.items() if n}
    lengths = [length for own in groups.values() for length in own]
    sequences = {
        group: [work.prompt_tokens + length for length in groups[group]]
        for group in trained
        if group in groups
    }
    if not sequences:
        return Bound(
            rollout_s=least_rollout_s(train, prices, lengths, len(groups)),
            last_s=0.0,
            first_s=0.0,
            training_s=0.0,
        )
    training = prices.training
    is_alone = [[own] for own in sequences.values()]
    last_s = min(training.least_s(one, 0) for one in is_alone) + training.step_s
    return Bound(
        rollout_s=least_rollout_s(train, prices, lengths, len(groups)),
        last_s=last_s,
        first_s=min(
            _alone_s(train, prices, groups[group], window.rewards_s.get(group, ()))
            for group in sequences
        ),
        training_s=training.least_s(list(sequences.values()), window.updates),
    )


def least_rollout_s(
    train: Train, prices: Prices, lengths: Sequence[int], num_groups: int
) -> float:
    """Seconds in which all completions can be sampled, at least."""
    if not lengths:
        return 0.0
    prompt = train.simulation.workload.prompt_tokens
    # Seconds of all the work on one worker; workers of other costs do it faster.
    each_s = [
        (
            member.decode.least_s(lengths, prompt=prompt, slots=member.slots)
            + num_groups * prompt * member.decode.prefill_token_s
        )
        / member.speed
        for member in prices.members
    ]
    shared_s = 1 / sum(1 / seconds for seconds in each_s)
    return max(shared_s, _longest_s(train, prices, max(lengths)))


def _longest_s(train: Train, prices: Prices, length: int) -> float:
    prompt = train.simulation.workload.prompt_tokens
    return min(
        (_lone_s(member.decode, prompt, length)) / member.speed
        for member in prices.members
    )


def _alone_s(
    train: Train, prices: Prices, lengths: Sequence[int], rewards_s: Sequence[float]
) -> float:
    """Until a group is scored that has all workers to itself."""
    reward_s = max(rewards_s, default=0.0)
    longest_s = least_rollout_s(train, prices, lengths, 1)
    shortest_s = _longest_s(train, prices, min(lengths))
    # The longest reward may belong to the shortest completion.
    return max(longest_s, shortest_s + reward_s)


def _lone_s(decode: Decode, prompt: int, length: int) -> float:
    return prompt * decode.prefill_token_s + decode.steps_s(1, prompt, length)


