"""Small runs for the simulator's tests, and ways to run them."""

import pathlib

from jigsaw_jax import config
from jigsaw_jax.simulation import overrides, prices
from jigsaw_jax.simulation.shell import Shell
from jigsaw_jax.simulation.workload import Workload

ROOT = pathlib.Path(__file__).parents[2]
BASE = config.load([str(ROOT / "configs/bench/tiny_qwen3.gin")]).train
SMALL = {
    "Pipeline.groups_per_round": 4,
    "Pipeline.groups_per_update": 2,
    "Pipeline.samples_per_group": 2,
    "Pipeline.filter": "drop",
    "Sampler.slots": 4,
    "Sampler.steps_per_call": 1,
    "Sampler.new_tokens_max": 1000,
    "Learner.row_tokens": 1032,
    "Workload.length_mean": 50.0,
    "Workload.prompt_tokens": 0,
    "Costs.decode_s": 1.0,
    "Reward.processes": 0,
}


def make(**changes):
    """A small run; names have "__" for "."."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return overrides.apply(BASE, {**SMALL, **named})


class Lengths(Workload):
    """Lengths by (position, sample)."""

    def __init__(self, train, lengths):
        super().__init__(train, 0)
        self._given = lengths

    def tokens(self, sample):
        rows = self._given
        return rows[int(sample.uid[4:]) % len(rows)][sample.sample]


def shell_of(train, lengths=None, *, seed=0, keeps_events=False):
    work = Workload(train, seed) if lengths is None else Lengths(train, lengths)
    return Shell(
        train,
        prices.prices(train, seed),
        work,
        seed=seed,
        keeps_events=keeps_events,
    )
