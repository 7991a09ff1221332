"""What is told of an update's completions, against all of them at once in NumPy."""

import math
from typing import Any

import numpy as np
import pytest

from jigsaw_jax.records import Group, GroupId, Prompt, SampleId, Score
from jigsaw_jax.runtime.cluster.places import Remote
from jigsaw_jax.runtime.measure import Completions, is_zero_variance

NOWHERE: Any = None


def make_groups(num=60, size=5, seed=0):
    """Groups of rewards that float64 can't add up exactly, with some missing."""
    rng = np.random.default_rng(seed)
    prompt = Prompt(uid="u", tokens=(1,), text="", answer="", task="")
    groups = []
    for order in range(num):
        lengths = rng.integers(1, 2000, size)
        rewards = rng.normal(1e6, 1.0, size).tolist()
        if order % 7 == 0:
            rewards = [rewards[0]] * size
        if order % 5 == 0:
            rewards[-1] = None
        scores = [
            Score(value=value, parts={"exact": value, f"part{order % 2}": 0.1})
            for value in rewards
        ]
        samples = [
            Remote(
                SampleId("u", 0, index), 0, int(length), bool(length > 1500), NOWHERE
            )
            for index, length in enumerate(lengths)
        ]
        groups.append(
            Group(
                id=GroupId("u", 0),
                order=order,
                prompt=prompt,
                samples=tuple(samples),
                scores=tuple(scores),
            )
        )
    return groups


def added(groups):
    completions = Completions()
    for group in groups:
        completions.add(group)
    return completions


def test_groups_added_one_by_one_tell_what_all_of_them_at_once_do():
    groups = make_groups()
    told = added(groups).metrics()
    scores = [score for group in groups for score in group.scores]
    values = np.array([s.value for s in scores if s.value is not None])
    samples = [sample for group in groups for sample in group.samples]
    lengths = np.array([sample.num_sampled for sample in samples])
    # Exact: the sum is correctly rounded, and so is its quotient.
    assert told["reward/mean"] == math.fsum(values) / len(values)
    # Two passes: rounding of 1e6 moves a deviation of 1 by 1e-10 at most.
    assert told["reward/std"] == pytest.approx(values.std(), rel=1e-9)
    assert told["reward/exact"] == told["reward/mean"]
    assert told["reward/part0"] == told["reward/part1"] == 0.1
    assert told["reward/missing"] == 12
    assert told["completion/length_mean"] == lengths.mean()
    assert told["completion/length_max"] == lengths.max()
    assert told["completion/truncated_ratio"] == np.mean(lengths > 1500)
    # One in seven has equal rewards, some of which are missing.
    assert told["group/zero_variance_ratio"] == 9 / 60
    assert added(groups).num_tokens == lengths.sum()


def test_neither_order_nor_how_groups_are_parted_changes_a_bit():
    groups = make_groups()
    expected = added(groups).metrics()
    assert added(groups[::-1]).metrics() == expected
    for cut in (0, 1, 23, len(groups)):
        first = added(groups[:cut])
        first.merge(added(groups[cut:]))
        assert first.metrics() == expected


def test_of_no_reward_there_is_no_mean_and_its_name_is_there():
    group = make_groups(num=1, size=1)[0]
    assert group.scores[0].value is None
    told = added([group]).metrics()
    assert math.isnan(told["reward/mean"])
    assert math.isnan(told["reward/exact"])
    assert told["reward/missing"] == 1
    assert told["group/zero_variance_ratio"] == 1


def test_rewards_that_are_there_are_compared():
    assert is_zero_variance([None, 1.0, 1.0])
    assert is_zero_variance([None])
    assert not is_zero_variance([None, 1.0, 0.5])
