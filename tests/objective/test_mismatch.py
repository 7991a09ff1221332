"""Correction weights and mismatch sums, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.objective import mismatch

MASK_RM = jnp.array([[True, True, True, True, False]])
LEARNER_RM = jnp.log(jnp.array([[0.5, 0.1, 0.9, 0.2, 0.3]]))
WEIGHTS = [0.5, 1.5, 2.5, 1.0]
SAMPLER_RM = jnp.array([[*(LEARNER_RM[0, :4] - jnp.log(jnp.array(WEIGHTS))), jnp.nan]])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("truncate", [0.5, 1.5, 2.0, 1.0]), ("mask", [0.0, 1.5, 0.0, 1.0])],
)
def test_weights_are_bounded_and_stopped(kind, expected):
    # 0.5 lies below 1 / 1.9 only; "truncate" never touches small weights.
    bound = 2.0 if kind == "truncate" else 1.9

    def weights(learner_RM):
        return mismatch.correction_weights(
            kind, learner_RM, SAMPLER_RM, mask_RM=MASK_RM, weight_max=bound
        )

    np.testing.assert_allclose(weights(LEARNER_RM)[0, :4], expected, rtol=1e-6)
    assert not np.any(jax.grad(lambda x: jnp.sum(weights(x)))(LEARNER_RM))


def test_sums_cover_equal_versions_only():
    is_equal_RM = jnp.array([[True, False, True, True, False]])
    sums = mismatch.mismatch_sums(LEARNER_RM, SAMPLER_RM, is_equal_RM)
    assert sums["count"] == 3
    assert float(sums["abs"]) == pytest.approx(np.log(2) + np.log(2.5), rel=1e-6)
    assert float(sums["abs_max"]) == pytest.approx(np.log(2.5), rel=1e-6)
    assert float(sums["weight"]) == pytest.approx(0.5 + 2.5 + 1.0, rel=1e-6)
