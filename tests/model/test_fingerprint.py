"""One set of weights is told from another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jigsaw_jax.model.fingerprint import fingerprint

VALUES = np.arange(-12, 12, dtype=np.float32).reshape(8, 3)


def tree(values=VALUES, name="query", dtype=jnp.float32):
    return {"000": {name: jnp.asarray(values, dtype), "norm": jnp.ones(3)}}


def test_the_same_weights_have_one_fingerprint_however_they_lie():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("fsdp",))
    spread = jax.device_put(tree(), NamedSharding(mesh, PartitionSpec()))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    spread["000"]["query"] = jax.device_put(spread["000"]["query"], rows)
    assert fingerprint(spread) == fingerprint(tree())


@pytest.mark.parametrize(
    "other",
    [
        tree(VALUES[::-1]),
        tree(VALUES.T),
        tree(np.nextafter(VALUES, np.float32(99))),
        tree(np.where(VALUES == 5, np.nan, VALUES)),
        tree(-VALUES),
        tree(name="key"),
        tree(dtype=jnp.bfloat16),
    ],
)
def test_any_change_is_seen(other):
    assert fingerprint(other) != fingerprint(tree())


def test_two_weights_that_change_places_are_seen():
    other = VALUES.copy()
    other[0, 0], other[7, 2] = VALUES[7, 2], VALUES[0, 0]
    assert fingerprint(tree(other)) != fingerprint(tree())
