import itertools

import pytest

from jigsaw_jax.schedule.gap import Gap


def make(*, width_min=1, width_max=32, slots=64, workers=1):
    gap = Gap(samples_per_group=8, width_min=width_min, width_max=width_max)
    gap.resized(slots, workers)
    return gap


def train(gap, train_s, num=1):
    gap.began()
    gap.see(gap.now_s + train_s)
    gap.accumulated(num)


def measured(*, a, b, train_s, longest=(100,) * 8, **limits):
    """Groups of 50 tokens a sample on average."""
    gap = make(**limits)
    for num in (8, 2):
        gap.timed(num, a + b * num)
    # Whoever admits asks.
    assert gap.limit
    for tokens in longest:
        gap.sampled((tokens, 100 - tokens))
    train(gap, train_s)
    return gap


def by_hand(limit, *, a, b, train_s):
    """Seconds of a round of 32 groups of 8 samples, of 50 tokens and at most 100."""
    token_s = a + b * limit
    first_s, rollout_s = 100 * token_s, (32 * 8 * 50 / limit + 50) * token_s
    return max(first_s + 32 * train_s, rollout_s + 2 * train_s)


def test_where_company_costs_nothing_all_slots_are_used():
    costs = {"a": 0.1, "b": 0.0, "train_s": 0.1}
    assert by_hand(56, **costs) > by_hand(64, **costs)
    assert measured(**costs).limit == 64
    assert measured(**costs).width == 8


def test_where_one_rate_is_shared_and_the_trainer_is_slower_one_group_is_enough():
    costs = {"a": 0.0, "b": 0.01, "train_s": 5.0}
    assert by_hand(8, **costs) < by_hand(16, **costs) < by_hand(24, **costs)
    assert measured(**costs).limit == 8
    assert measured(**costs, width_min=3).limit == 24


def test_where_one_rate_is_shared_and_the_sampler_is_slower_its_tail_is_kept_short():
    costs = {"a": 0.0, "b": 0.01, "train_s": 1.0}
    # 128 s for all tokens, and then what the last samples take.
    assert by_hand(8, **costs) == pytest.approx(134.0)
    assert by_hand(64, **costs) == pytest.approx(162.0)
    assert measured(**costs).limit == 8


@pytest.mark.parametrize("train_s", [0.2, 1.0, 2.0, 4.0])
def test_in_between_the_limit_ends_a_round_as_early_as_any(train_s):
    costs = {"a": 0.05, "b": 0.004, "train_s": train_s}
    limit = measured(**costs).limit
    best_s = min(by_hand(8 * width, **costs) for width in range(1, 9))
    assert by_hand(limit, **costs) <= 1.0021 * best_s


def test_company_is_that_of_one_worker():
    costs = {"a": 0.05, "b": 0.004, "train_s": 2.0}
    # Four workers with a quarter of the slots and four times the cost of company.
    apart = measured(a=0.05, b=0.016, train_s=2.0, workers=4)
    assert apart.limit == measured(**costs).limit


def test_the_first_group_is_the_quickest_of_those_that_run_together():
    gap = measured(a=0.1, b=0.0, train_s=1.0, longest=(60, 70, 80, 90))
    draws = itertools.product((60, 70, 80, 90), repeat=2)
    by_count = sum(min(draw) for draw in draws) / 16
    assert gap._first_tokens(2.0) == pytest.approx(by_count)
    assert gap._first_tokens(1.0) == 75.0


def test_one_sample_begins_and_the_others_follow_when_a_step_was_timed():
    gap = make(width_min=3)
    assert (gap.limit, gap.width) == (1, 1)
    gap.timed(1, 0.5)
    assert (gap.limit, gap.width) == (24, 3)


def test_samples_that_are_alone_on_their_workers_get_company_to_be_timed():
    gap = make(slots=640, workers=20)
    gap.timed(1, 0.5)
    assert gap.limit == 40


@pytest.mark.parametrize(
    ("a", "b", "limit"), [(0.1, 0.0, 64), (0.0, 0.01, 8), (0.1, 0.005, 20)]
)
def test_before_the_trainer_is_measured_a_token_takes_twice_what_it_does_alone(
    a, b, limit
):
    gap = make()
    for num in (4, 8):
        gap.timed(num, a + b * num)
    assert gap.limit == limit


def test_the_quickest_of_the_first_groups_alone_does_not_count_as_measured():
    gap = measured(a=0.1, b=0.0, train_s=1.0, longest=(60,) * 7)
    assert not gap._is_measured
    gap.sampled((60,))
    assert gap._is_measured


def test_without_any_times_all_slots_are_used_once_a_sample_has_finished():
    gap = make()
    gap.entered()
    gap.left(is_finished=False)
    assert gap.limit == 1
    gap.entered()
    gap.left(is_finished=True)
    assert (gap.limit, gap.running) == (64, 0)


def test_times_that_say_nothing_are_not_counted():
    gap = make()
    gap.timed(0, 1.0)
    gap.timed(4, 0.0)
    assert gap.limit == 1


def test_the_least_is_never_more_than_the_slots_and_never_none():
    assert measured(a=0.0, b=0.01, train_s=9.0, slots=3).limit == 3
    assert make(slots=0, workers=0).limit == 1


def test_a_step_is_shared_by_the_groups_of_its_update():
    costs = {"a": 0.1, "b": 0.0005, "train_s": 0.5}
    quick = measured(**costs)
    assert quick.limit == 64
    quick.began()
    quick.see(quick.now_s + 16.0)
    # 16 s over four groups make four and a half a group, so the trainer is the slower.
    quick.stepped(4)
    costs["train_s"] = 4.5
    assert by_hand(8, **costs) > by_hand(16, **costs) < by_hand(24, **costs) / 1.002
    assert quick.limit == 16


def test_several_groups_in_one_hand_off_share_its_time():
    gap = measured(a=0.1, b=0.0005, train_s=0.5)
    for _ in range(20):
        train(gap, 2.0, num=4)
    assert gap.limit == 64
    for _ in range(20):
        train(gap, 20.0, num=4)
    assert gap.limit == 16


def test_time_never_goes_back():
    gap = make()
    gap.see(5.0)
    gap.see(3.0)
    assert gap.now_s == 5.0


def test_a_restored_gap_goes_on_without_the_clock_of_before():
    gap = measured(a=0.0, b=0.01, train_s=5.0, width_min=2)
    again = make(width_min=2)
    again.restore(gap.snapshot())
    assert again.limit == gap.limit == 16
    train(again, 5.0)
    assert again.limit == 16
    narrower = make(width_min=1, width_max=4)
    narrower.restore(measured(a=0.1, b=0.0, train_s=0.5).snapshot())
    assert narrower.limit == 32


def test_a_snapshot_of_the_gap_before_is_taken_over_as_far_as_it_goes():
    old = measured(a=0.0, b=0.01, train_s=5.0).snapshot()
    del old["means"], old["longest"]
    gap = make()
    gap.restore(old | {"width": 3, "mean_tokens": 50.0})
    assert not gap._is_measured
    # The line is known, and says that company brings nothing.
    assert gap.limit == 8
