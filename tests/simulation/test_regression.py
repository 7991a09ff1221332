import numpy as np
import pytest

from jigsaw_jax.simulation import regression


def test_what_was_disturbed_does_not_change_what_is_typical():
    rng = np.random.default_rng(0)
    rows = [[1, n, int(rng.integers(0, 2))] for n in range(1, 41)]
    seconds = [0.5 * a + 0.1 * b + 0.2 * c for a, b, c in rows]
    for place in (3, 11, 30):
        seconds[place] *= 20
    found = regression.typical(rows, seconds)
    # The floor of a residual is 1e-6 of the longest time.
    assert found == pytest.approx([0.5, 0.1, 0.2], abs=1e-3)


def test_a_coefficient_below_zero_is_none_and_the_rest_is_fitted_again():
    # Alone, a constant's least sum of absolute residuals is the median.
    found = regression.typical([[1, 1], [1, 2], [1, 3]], [3.0, 2.0, 1.0])
    assert found == pytest.approx([2.0, 0.0], abs=1e-3)


def test_columns_that_are_favoured_explain_what_others_could_too():
    rows, seconds = [[1, 2], [2, 4], [3, 6]], [1.0, 2.0, 3.0]
    # Their weight is 1e4 in the norm.
    one, other = (regression.typical(rows, seconds, [i]) for i in (0, 1))
    assert one == pytest.approx([1.0, 0.0], abs=1e-6)
    assert other == pytest.approx([0.0, 0.5], abs=1e-6)
    # Without, the least norm is 1/5 and 2/5.
    assert regression.typical(rows, seconds) == pytest.approx([0.2, 0.4])


def test_the_level_is_that_of_the_middle_part():
    rows, seconds = [[1], [1], [1], [1], [1]], [1.0, 3.0, 2.0, 2.2, 30.0]
    parts = ["a", "a", "b", "c", "d"]
    # Sums over the fitted ones: 4 / 2, 2 / 1, 2.2 / 1 and 30 / 1.
    level = regression.level(np.asarray([1.0]), rows, seconds, parts)
    assert level == pytest.approx(2.1)
