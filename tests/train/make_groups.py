"""Small groups and runs for the learner's tests."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import decoder as model
from jigsaw_jax.records import (
    FinishReason,
    Group,
    GroupId,
    Prompt,
    Sample,
    SampleId,
    Score,
    Segment,
)
from jigsaw_jax.settings import (
    Decoder,
    Learner,
    Mesh,
    Objective,
    Optimizer,
    Pipeline,
    Sampler,
    Train,
    WarmUp,
)
from jigsaw_jax.train import learner

DECODER = Decoder(
    vocab_size=16,
    num_layers=1,
    model_dim=16,
    hidden_dim=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    init_scale=0.3,
)
NUM_GROUPS, NUM_SAMPLES = 4, 3
OBJECTIVES = {
    "grpo": Objective(),
    "gspo": Objective(
        ratio="sequence", aggregation="seq-mean-token-mean", clip_high=0.3
    ),
    "dr_grpo": Objective(
        advantage="dr_grpo", aggregation="seq-mean-token-sum-norm", overlong_buffer=6
    ),
    "cispo": Objective(
        advantage="rloo", surrogate="cispo", mask_truncated=True, clip_high=4.0
    ),
    "kl_loss": Objective(kl="k3", kl_coefficient=0.5, entropy_coefficient=0.1),
    "kl_reward": Objective(kl="k1", kl_coefficient=0.5, kl_placement="reward"),
    "reinforce_pp": Objective(
        advantage="reinforce_pp", aggregation="seq-mean-token-sum"
    ),
    "recompute": Objective(old_policy="recompute", mismatch="truncate"),
}


def every_objective(*quick):
    """Parametrises by the name of an objective; all but `quick` are slow."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in quick else pytest.mark.slow)
            for name in OBJECTIVES
        ],
    )


def run(objective=None, **changes):
    """A run whose rows hold 32 tokens; of the changes, Learner's go to it."""
    sizes: dict[str, Any] = {"rows": 8, "row_tokens": 32, "row_shapes": 1}
    of_learner = {f.name for f in dataclasses.fields(Learner)} & set(changes)
    sizes |= {name: changes.pop(name) for name in of_learner}
    parts: dict[str, Any] = {
        "updates": 10,
        "decoder": DECODER,
        "mesh": Mesh(shared=True),
        "learner": Learner(**sizes),
        "objective": objective or Objective(),
        # A huge eps makes the step the gradient times rate / eps, so that equal weights
        # mean equal gradients.
        "optimizer": Optimizer(
            learning_rate=100.0, eps=100.0, clip_norm=None, schedule="linear"
        ),
        "warm_up": WarmUp(updates=9, learning_rate=100.0),
        "sampler": Sampler(prompt_buckets=(8,), new_tokens_max=12, temperature=0.8),
        "pipeline": Pipeline(
            groups_per_round=2 * NUM_GROUPS,
            groups_per_update=NUM_GROUPS,
            samples_per_group=NUM_SAMPLES,
        ),
    }
    return Train(**(parts | changes))


def make_learner(train, seed=0, **kwargs):
    mesh = meshes.learner_mesh(train.mesh, jax.devices())
    return learner.Learner(train, mesh, first_params(seed), **kwargs)


@functools.cache
def first_params(seed):
    return jax.device_get(model.init_params(DECODER, seed))


def make_sample(uid, g, rng, *, version=0, truncated=False, multi_turn=False):
    def sampled(num):
        return Segment(
            tokens=tuple(rng.integers(0, 16, num).tolist()),
            logprobs=tuple((-rng.random(num) * 2 - 1.5).tolist()),
            versions=(version,) * num,
        )

    num = int(rng.integers(1, 11))
    segments = (sampled(num),)
    if multi_turn:
        seen = tuple(rng.integers(0, 16, 3).tolist())
        observed = Segment(tokens=seen, logprobs=(), versions=(), is_sampled=False)
        segments = (sampled(2), observed, sampled(3))
    reason = FinishReason.LENGTH if truncated else FinishReason.STOP
    return Sample(
        id=SampleId(uid, 0, g), attempt=0, segments=segments, finish_reason=reason
    )


def make_group(p, *, rewards=None, **kwargs):
    """Group `p` of random tokens; the same each time."""
    rng = np.random.default_rng(p)
    uid = f"prompt-{p}"
    prompt = tuple(rng.integers(0, 16, int(rng.integers(1, 9))).tolist())
    samples = tuple(make_sample(uid, g, rng, **kwargs) for g in range(NUM_SAMPLES))
    if rewards is None:
        rewards = rng.random(NUM_SAMPLES).tolist()
    return Group(
        id=GroupId(uid, 0),
        order=p,
        prompt=Prompt(uid=uid, tokens=prompt, text="", answer="", task="test"),
        samples=samples,
        scores=tuple(Score(value=value) for value in rewards),
    )


def make_groups(num=NUM_GROUPS, **kwargs):
    return [make_group(p, **kwargs) for p in range(num)]


@functools.cache
def _cached(text):
    train = _TRAINS[text]
    made = make_learner(train)
    # A step donates the optimizer state, so the first state is kept on the host.
    return made, jax.device_get(made.state())


_TRAINS = {}


def fresh_learner(train):
    """A learner as if new, compiled once for all tests with the same settings."""
    _TRAINS[repr(train)] = train
    made, state = _cached(repr(train))
    made.load_state(state)
    made.begin_round(0)
    return made


def update_once(train, calls):
    """Metrics and weights of one update over the groups of `calls`."""
    learner = fresh_learner(train)
    for groups in calls:
        learner.accumulate(groups, 0)
    metrics = learner.step(0)
    return metrics, jax.device_get(learner.params)


def assert_near(one, two, atol=5e-6):
    """Trees of numbers agree; float32 sums in another order differ by about 1e-7."""

    # A sum in another order is off by some roundings of its largest terms, which have
    # the size of the largest entries: 2 ** -24 of them a term; 42 of those were seen.
    # How XLA cuts a matrix product among threads changes that order from run to run.
    def compare(a, b):
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=atol * scale)

    jax.tree.map(compare, one, two)


def assert_same(one, two):
    """Trees are equal bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, one, two)
