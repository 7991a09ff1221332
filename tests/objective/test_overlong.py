"""The soft penalty on long completions."""

import jax.numpy as jnp
import numpy as np

from jigsaw_jax.objective.overlong import overlong_reward


def test_penalty_grows_linearly_over_the_buffer():
    lengths_PG = jnp.array([[1, 80], [90, 100]])
    got_PG = overlong_reward(lengths_PG, 100, buffer=20, penalty=1.0)
    np.testing.assert_allclose(got_PG, [[0, 0], [-0.5, -1]])


def test_no_buffer_is_no_penalty():
    assert not np.any(
        overlong_reward(jnp.array([[99, 100]]), 100, buffer=0, penalty=1.0)
    )


def test_a_buffer_as_long_as_the_cap_starts_at_the_first_token():
    got_PG = overlong_reward(jnp.array([[0, 1, 4]]), 4, buffer=4, penalty=2.0)
    np.testing.assert_allclose(got_PG, [[0, -0.5, -2]])
