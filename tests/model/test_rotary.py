"""Both ways to turn a head are the same rotation."""

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax.model import rotary


def test_a_matrix_that_swaps_the_halves_gives_the_same_turn_and_gradient():
    rng = np.random.default_rng(0)
    heads, weights = (
        jnp.asarray(rng.standard_normal((2, 5, 3, 8)), jnp.float32) for _ in range(2)
    )
    positions = jnp.asarray([[0, 1, 2, 0, 700]] * 2)
    turn = rotary.turn(positions, np.float32(10) ** -np.arange(4, dtype=np.float32))

    def loss(rotate, x):
        return jnp.sum(rotate(x, turn) * weights)

    ways = (rotary.rotate, rotary._rotate_whole)
    one, other = (np.asarray(way(heads, turn)) for way in ways)
    # Only the order of one addition differs.
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert np.abs(one[:, 4] - np.asarray(heads)[:, 4]).max() > 1
    one, other = (jax.grad(loss, 1)(way, heads) for way in ways)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
