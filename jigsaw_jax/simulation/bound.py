"""The least time that a round can take, whatever the policy.

    max(least possible rollout + training of the last group,
        earliest possible first group + all training)

The least possible rollout is all sampling work shared out over all workers without a
gap, or the longest completion alone on the fastest worker. The earliest possible first
group is the one that takes least with all workers to itself, its reward included.
Nothing waits, and nothing is in anything's way. So no order of admission, no hand-off
and no width of a frontier gets below it, and a run can be measured by it.
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
    trained = [group for group in window.trained if group in window.sampled]
    return bound_of(
        train,
        prices,
        list(window.sampled.values()),
        trained=[window.sampled[group] for group in trained],
        rewards_s=[max(window.rewards_s.get(group, (0.0,))) for group in trained],
        updates=window.updates,
    )


def bound_of(
    train: Train,
    prices: Prices,
    sampled: Sequence[Sequence[int]],
    *,
    trained: Sequence[Sequence[int]],
    rewards_s: Sequence[float],
    updates: int,
) -> Bound:
    """The bound of a round whose completions have given lengths.

    Args:
      train: the run.
      prices: its costs.
      sampled: tokens of each completion, by group.
      trained: the groups among them that train.
      rewards_s: longest reward of each of those.
      updates: steps.

    Returns:
      Its parts; without anything trained, only the rollout.
    """
    prompt, training = train.simulation.workload.prompt_tokens, prices.training
    lengths = [length for own in sampled for length in own]
    rollout_s = least_rollout_s(train, prices, lengths, len(sampled))
    if not trained:
        return Bound(rollout_s=rollout_s, last_s=0.0, first_s=0.0, training_s=0.0)
    sequences = [[prompt + length for length in own] for own in trained]
    return Bound(
        rollout_s=rollout_s,
        last_s=min(training.least_s([own], 1) for own in sequences),
        first_s=min(
            _alone_s(train, prices, own, reward_s)
            for own, reward_s in zip(trained, rewards_s, strict=True)
        ),
        training_s=training.least_s(sequences, updates),
    )


def least_rollout_s(
    train: Train, prices: Prices, lengths: Sequence[int], num_groups: int
) -> float:
    """Seconds in which all completions can be sampled, at least."""
    if not lengths:
        return 0.0
    prompt = train.simulation.workload.prompt_tokens
    # How often each kind of worker could do all of the work in a second.
    rate = 0.0
    for member, count in prices.kinds:
        seconds = member.decode.least_s(lengths, prompt=prompt, slots=member.slots)
        seconds += num_groups * prompt * member.decode.prefill_token_s
        rate += count * member.speed / seconds
    return max(1 / rate, _longest_s(train, prices, max(lengths)))


def _longest_s(train: Train, prices: Prices, length: int) -> float:
    """The time of a completion that has the fastest worker to itself."""
    prompt = train.simulation.workload.prompt_tokens
    return min(
        _lone_s(member.decode, prompt, length) / member.speed
        for member, _ in prices.kinds
    )


def _alone_s(
    train: Train, prices: Prices, lengths: Sequence[int], reward_s: float
) -> float:
    """Until a group is scored that has all workers to itself."""
    longest_s = least_rollout_s(train, prices, lengths, 1)
    shortest_s = _longest_s(train, prices, min(lengths))
    # The longest reward may belong to the shortest completion.
    return max(longest_s, shortest_s + reward_s)


def _lone_s(decode: Decode, prompt: int, length: int) -> float:
    return prompt * decode.prefill_token_s + decode.steps_s(1, prompt, length)
