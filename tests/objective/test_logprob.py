"""Logprobs and entropies at a temperature, whole and in chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.objective.logprob import chunked_logprobs, token_logprobs


def test_the_temperature_divides_logits():
    logits_RMV = jnp.array([[[2.0, 0.0]]])
    first, _ = token_logprobs(logits_RMV, jnp.array([[0]]), 0.5)
    second, _ = token_logprobs(logits_RMV, jnp.array([[1]]), 0.5)
    assert first[0, 0] == pytest.approx(-0.01815, abs=1e-5)
    assert second[0, 0] == pytest.approx(-4.01815, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_distribution_sums_to_one_and_agrees_with_float64(temperature):
    rng = np.random.default_rng(0)
    logits_RMV = rng.normal(size=(2, 3, 7)).astype(np.float32) * 5
    exact = logits_RMV.astype(np.float64) / temperature
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    total_RM, entropies_RM = 0, jnp.zeros(())
    for token in range(7):
        logprobs_RM, entropies_RM = token_logprobs(
            jnp.asarray(logits_RMV), jnp.full((2, 3), token), temperature
        )
        # A few roundings of numbers up to 40 in float32.
        np.testing.assert_allclose(logprobs_RM, exact[..., token], atol=1e-5)
        total_RM += np.exp(logprobs_RM)
    np.testing.assert_allclose(total_RM, np.ones((2, 3)), rtol=1e-5)
    np.testing.assert_allclose(
        entropies_RM, -(np.exp(exact) * exact).sum(-1), atol=1e-5
    )


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_uniform_logits_have_the_entropy_of_the_vocabulary(temperature):
    _, entropies_RM = token_logprobs(
        jnp.full((1, 2, 8), 3.0), jnp.zeros((1, 2), int), temperature
    )
    np.testing.assert_allclose(entropies_RM, np.full((1, 2), 2.0794415), rtol=1e-6)


def test_huge_logits_stay_finite():
    logits_RMV = jnp.array([[[800.0, -800.0]]])
    logprobs_RM, entropies_RM = token_logprobs(logits_RMV, jnp.array([[1]]), 1.0)
    assert logprobs_RM[0, 0] == -1600
    assert entropies_RM[0, 0] == 0


@pytest.mark.parametrize(
    "chunk",
    [4, 1000, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in (1, 2, 7))],
)
def test_chunks_change_neither_values_nor_gradients(chunk):
    rng = np.random.default_rng(1)
    hidden_RMD = jnp.asarray(rng.normal(size=(2, 5, 4)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(4, 9)), jnp.float32)
    targets_RM = jnp.asarray(rng.integers(0, 9, (2, 5)))
    scale = jnp.asarray(rng.normal(size=(2, 2, 5)), jnp.float32)

    def total(weight, hidden_RMD, chunk):
        pair = chunked_logprobs(
            lambda x: x @ weight, hidden_RMD, targets_RM, temperature=0.7, chunk=chunk
        )
        return jnp.sum(jnp.stack(pair) * scale), pair

    run = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)
    whole = run(weight, hidden_RMD, 0)
    parts = run(weight, hidden_RMD, chunk)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), whole, parts)


def test_logits_of_all_tokens_never_exist_when_chunked():
    hidden_RMD, targets_RM = jnp.ones((2, 8, 4)), jnp.zeros((2, 8), int)

    def loss(weight, chunk):
        logprobs_RM, _ = chunked_logprobs(
            lambda x: x @ weight, hidden_RMD, targets_RM, temperature=1.0, chunk=chunk
        )
        return jnp.sum(logprobs_RM)

    def shapes(chunk):
        jaxpr = jax.make_jaxpr(jax.grad(functools.partial(loss, chunk=chunk)))
        text = str(jaxpr(jnp.ones((4, 9))))
        return "[2,8,9]" in text, "[2,2,9]" in text

    assert shapes(0) == (True, False)
    assert shapes(4) == (False, True)
