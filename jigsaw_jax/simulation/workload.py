"""How long each completion is and what becomes of it, from its identity alone.

So two policies meet the same completions, and a retry meets its own again.
"""

import math

from jigsaw_jax.records import SampleId
from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import chance

PREFIX = "sim/"


def uid(position: int) -> str:
    """The uid of the prompt at a position of the data."""
    return f"{PREFIX}{position}"


def position_of(name: str) -> int:
    """The position of the prompt with a uid."""
    return int(name.removeprefix(PREFIX))


class Workload:
    """The completions of one simulated run.

    Args:
      train: for the distribution, the cap, and R, which drift counts in.
      seed: another one gives other completions.
      recorded: lengths of a run by position of the prompt and sample; later prompts
        take them again from the start.
    """

    def __init__(
        self, train: Train, seed: int, recorded: tuple[tuple[int, ...], ...] = ()
    ) -> None:
        self._settings = train.simulation.workload
        self._cap = train.sampler.new_tokens_max
        self._per_round = train.pipeline.groups_per_round
        self._seed = seed
        self._recorded = recorded
        self._samples = sorted(self._settings.length_samples)

    def tokens(self, sample: SampleId) -> int:
        """Sampled tokens of a completion, at least 1 and at most the cap."""
        position = position_of(sample.uid)
        if self._recorded:
            lengths = self._recorded[position % len(self._recorded)]
            return min(lengths[sample.sample % len(lengths)], self._cap)
        settings = self._settings
        z = self._normal(sample)
        growth = 1 + settings.length_drift * (position // self._per_round)
        if self._samples:
            place = int(chance.share_below(z) * len(self._samples))
            length = growth * self._samples[min(place, len(self._samples) - 1)]
        else:
            sigma = settings.length_sigma
            length = growth * settings.length_mean * math.exp(sigma * (z - sigma / 2))
        return max(1, min(round(length), self._cap))

    def legs(self, sample: SampleId) -> list[int]:
        """Tokens of each turn; they differ by 1 at most and none is empty."""
        tokens = self.tokens(sample)
        turns = min(self._settings.turns, tokens)
        return [tokens // turns + (turn < tokens % turns) for turn in range(turns)]

    def tool_s(self, sample: SampleId, turn: int) -> float:
        """Time of the tool call behind a turn."""
        settings = self._settings
        words = (self._seed, "tool", *sample, turn)
        return chance.lognormal(settings.tool_s, settings.tool_sigma, *words)

    def reward_s(self, sample: SampleId) -> float:
        """Time of a completion's reward."""
        settings = self._settings
        words = (self._seed, "reward", *sample)
        return chance.lognormal(settings.reward_s, settings.reward_sigma, *words)

    def value(self, sample: SampleId) -> float:
        """The reward: both kinds in a group, unless the group is flat."""
        rate = self._settings.flat_rate
        name, draw, index = sample
        if rate and chance.uniform(self._seed, "flat", name, draw) < rate:
            return 0.0
        return float(index % 2)

    def _normal(self, sample: SampleId) -> float:
        shared = self._settings.group_correlation
        own = chance.normal(self._seed, "length", *sample)
        if not shared:
            return own
        common = chance.normal(self._seed, "group", sample.uid, sample.draw)
        return math.sqrt(shared) * common + math.sqrt(1 - shared) * own
