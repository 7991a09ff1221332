import itertools

import pytest

from jigsaw_jax.reward.pass_at_k import mean_pass_at_k, pass_at_k


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


def test_rewards_pass_from_the_threshold_on_and_a_failed_one_does_not():
    values = [[0.9, 1.1], [1.0, None], [0.0, 0.5]]
    # Shares of 1/2, 1/2 and 0.
    assert mean_pass_at_k(values, k=1, threshold=1.0) == pytest.approx(1 / 3)
    assert mean_pass_at_k(values, k=2, threshold=1.0) == pytest.approx(2 / 3)


def test_every_problem_has_the_same_weight():
    values = [[1.0] * 10, [0.0]]
    assert mean_pass_at_k(values, k=1, threshold=1.0) == 0.5


def test_no_problem_is_refused():
    with pytest.raises(ValueError, match="at least one problem"):
        mean_pass_at_k([], k=1, threshold=1.0)
