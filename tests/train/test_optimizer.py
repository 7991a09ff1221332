"""The learning rate in closed form, and AdamW against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.settings import Optimizer
from jigsaw_jax.train import optimizer


def rates(**kwargs):
    settings = Optimizer(learning_rate=2.0, **kwargs)
    return [optimizer.learning_rate(settings, u, 6) for u in range(6)]


def test_constant_and_warm_up():
    assert rates() == [2.0] * 6
    assert rates(warmup_updates=4) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_decay_ends_at_its_fraction():
    np.testing.assert_allclose(
        rates(schedule="linear", warmup_updates=1, end_fraction=0.5),
        [2.0, 2.0, 1.75, 1.5, 1.25, 1.0],
    )


def test_cosine_decay_is_halfway_in_the_middle():
    got = rates(schedule="cosine", warmup_updates=1)
    np.testing.assert_allclose(got[1:], 1 + np.cos(np.pi * np.arange(5) / 4), atol=1e-9)


def test_a_run_of_one_update_has_the_peak():
    settings = Optimizer(learning_rate=2.0, schedule="linear")
    assert optimizer.learning_rate(settings, 0, 1) == 2.0


def make(dtype=jnp.float32, **kwargs):
    axes = {"w": ("embed", "mlp"), "norm": ("layers", "embed")}
    params = {"w": jnp.array([[1.0, -2.0]], dtype), "norm": jnp.ones((2, 1), dtype)}
    transform = optimizer.transformation(Optimizer(**kwargs), axes)
    return transform, params, optimizer.init(transform, params)


GRADIENTS = {"w": jnp.array([[3.0, 0.0]]), "norm": jnp.array([[0.0], [4.0]])}


@pytest.mark.parametrize("clip_norm", [None, 1.0, 100.0])
def test_two_steps_follow_the_formula(clip_norm):
    b1, b2, eps, decay, rate = 0.9, 0.99, 1e-2, 0.1, 0.5
    transform, params, state = make(
        b1=b1, b2=b2, eps=eps, weight_decay=decay, clip_norm=clip_norm
    )
    expected = {name: np.asarray(x, np.float64) for name, x in params.items()}
    moments = dict.fromkeys(params, (np.zeros(()), np.zeros(())))
    # The gradient's global norm is 5.
    scale = 1 if clip_norm is None else min(1, clip_norm / 5)
    for t in (1, 2):
        params, state = optimizer.apply(
            transform, params, state, gradients=GRADIENTS, rate=jnp.float32(rate)
        )
        for name, x in expected.items():
            g = np.asarray(GRADIENTS[name], np.float64) * scale
            m, v = moments[name]
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            moments[name] = m, v
            step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
            # Norms are not decayed, also where scanned layers give them two dims.
            expected[name] = x - rate * (step + decay * x * (name == "w"))
    # 1 - 0.99^2 in float32 has four digits left of its seven: 1e-5 of a step of 0.5.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6), params, expected
    )


def test_the_first_state_is_zero_throughout():
    _, _, state = make(weight_decay=0.1, clip_norm=1.0)
    assert not any(np.any(x) for x in jax.tree.leaves(state))


def test_moments_of_bfloat16_weights_are_float32():
    transform, params, state = make(jnp.bfloat16)
    params, state = optimizer.apply(
        transform, params, state, gradients=GRADIENTS, rate=jnp.float32(0.5)
    )
    floats = [x for x in jax.tree.leaves(state) if x.ndim]
    assert len(floats) == 4
    assert all(x.dtype == jnp.float32 for x in floats)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(params))
