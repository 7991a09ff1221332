import math

import pytest

from jigsaw_jax.schedule.line import Line


def line(*points):
    found = Line()
    for x, y in points:
        found.add(x, y)
    return found


def test_points_on_a_line_give_the_line():
    found = line((8.0, 0.18), (2.0, 0.12), (5.0, 0.15))
    assert found.at(20.0) == pytest.approx(0.1 + 0.01 * 20)


def test_points_at_one_place_tell_no_slope_and_keep_the_one_that_was_known():
    assert line((8.0, 0.18), (8.1, 0.19)).at(99.0) == pytest.approx(0.185, rel=1e-3)
    found = line((8.0, 0.18), (2.0, 0.12))
    slope = (found.at(9.0) - found.at(5.0)) / 4
    for _ in range(2000):
        found.add(30.0, 0.5)
    assert found.at(30.0) == pytest.approx(0.5, rel=1e-3)
    # The last that was told before the points were too close.
    assert (found.at(40.0) - found.at(30.0)) / 10 >= slope


def test_neither_the_slope_nor_what_is_left_at_nothing_is_below_zero():
    falling = line((2.0, 0.9), (8.0, 0.1))
    assert falling.at(2.0) == falling.at(8.0)
    steep = line((2.0, 0.0), (8.0, 1.0))
    assert steep.at(0.0) == pytest.approx(0.0, abs=1e-12)
    assert steep.at(10.0) == pytest.approx(1.0, rel=0.01)


def test_old_points_fade():
    found = line(*[(4.0, 9.0), (8.0, 9.0)] * 5)
    for _ in range(1000):
        found.add(4.0, 1.0)
        found.add(8.0, 2.0)
    assert found.at(4.0) == pytest.approx(1.0, abs=0.05)


def test_an_empty_line_is_zero_and_a_restored_one_the_same():
    assert Line().at(3.0) == 0.0
    found, again = line((8.0, 0.18), (2.0, 0.12)), Line()
    again.restore(found.snapshot())
    assert again.at(5.0) == found.at(5.0)


def test_the_knee_is_where_company_doubles_what_one_alone_takes():
    found = line((8.0, 0.18), (2.0, 0.12))
    assert found.is_known
    assert found.knee == pytest.approx(10.0)
    assert line((8.0, 0.5), (2.0, 0.5)).knee == math.inf
    assert line((8.0, 0.8), (2.0, 0.2)).knee == pytest.approx(0.0, abs=1e-9)
    assert not line((8.0, 0.5)).is_known
    assert not Line().has_points
