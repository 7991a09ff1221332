"""The product's gradients against those of a plain einsum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.model.product import product

HIGHEST = jax.lax.Precision.HIGHEST


@pytest.mark.parametrize(
    ("equation", "shape"),
    [
        ("BTD,DF->BTF", (4, 5)),
        ("BTD,DNH->BTNH", (4, 3, 2)),
        ("BTNH,NHD->BTD", (2, 2, 5)),
    ],
)
def test_value_and_gradients_are_those_of_einsum(equation, shape):
    rng = np.random.default_rng(0)
    inner = (4,) if "NHD" not in equation else (2, 2)
    x = jnp.asarray(rng.normal(size=(2, 3, *inner)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=shape), jnp.float32)

    def total(x, weight, multiply):
        return jnp.sum(jnp.sin(multiply(x, weight)))

    ours = jax.value_and_grad(
        lambda x, w: total(x, w, lambda x, w: product(x, w, equation, HIGHEST)), (0, 1)
    )
    plain = jax.value_and_grad(
        lambda x, w: total(x, w, lambda x, w: jnp.einsum(equation, x, w)), (0, 1)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        ours(x, weight),
        plain(x, weight),
    )
