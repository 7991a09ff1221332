import itertools

import pytest

from jigsaw_jax.reward.pass_at_k import pass_at_k


@pytest.mark.parametrize(
    ("k", "expected"), [(1, 0.375), (2, 0.642857), (4, 0.928571), (8, 1.0)]
)
def test_three_of_eight_pass(k, expected):
    # 1 - C(5, k) / C(8, k): 1 - 5/8, 1 - 10/28, 1 - 5/70, 1 - 0.
    assert pass_at_k(8, 3, k) == pytest.approx(expected, abs=1e-6)


def test_one_of_four_always_passes_when_all_four_are_drawn():
    assert pass_at_k(4, 1, 4) == 1.0


def test_it_is_the_share_of_subsets_that_hold_a_pass():
    n, c = 6, 2
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(range(n), k))
        share = sum(any(i < c for i in subset) for subset in subsets) / len(subsets)
        assert pass_at_k(n, c, k) == pytest.approx(share, abs=1e-12)


def test_none_passes_and_all_pass():
    assert [pass_at_k(5, 0, k) for k in (1, 3, 5)] == [0, 0, 0]
    assert [pass_at_k(5, 5, k) for k in (1, 3, 5)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("n", "c", "k", "named"),
    [
        (3, 1, 4, "n must"),
        (3, 4, 2, "c must"),
        (3, -1, 2, "c must"),
        (3, 1, 0, "k must"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(n, c, k, named):
    with pytest.raises(ValueError, match=named):
        pass_at_k(n, c, k)
