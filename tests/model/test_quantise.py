"""Int8 keys and values: the error of a value, and of a policy's logprobs."""

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax.model.quantise import dequantise, quantise


def test_each_value_is_within_half_a_step_of_its_heads_scale():
    x = jax.random.normal(jax.random.key(0), (2, 3, 8, 5)) * 7
    kept = quantise(x, 2)
    assert kept.values.dtype == jnp.int8
    assert kept.scales.shape == (2, 3, 1, 5)
    largest = jnp.max(jnp.abs(x), axis=2, keepdims=True)
    np.testing.assert_allclose(kept.scales, largest / 127, rtol=1e-6)
    error = jnp.abs(dequantise(kept, jnp.float32) - x)
    assert (error <= kept.scales * 0.5001).all()
    # The largest is exact but for rounding.
    assert (jnp.max(jnp.abs(kept.values), axis=2) == 127).all()


def test_zeros_stay_zeros_and_a_nan_stays_one():
    x = jnp.zeros((2, 4)).at[1, 2].set(jnp.nan)
    back = dequantise(quantise(x, 1), jnp.bfloat16)
    assert back.dtype == jnp.bfloat16
    assert (back[0] == 0).all()
    assert jnp.isnan(back[1]).all()


def test_what_is_not_quantised_is_returned_as_it_is():
    x = jnp.ones((2, 3))
    assert dequantise(x, jnp.bfloat16) is x
