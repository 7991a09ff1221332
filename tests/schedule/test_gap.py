import pytest

from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.gap import Gap


def make(*, width_min=1, width_max=32, slots=64):
    gap = Gap(samples_per_group=8, width_min=width_min, width_max=width_max)
    gap.slots = slots
    return gap


def decode(gap, num, token_s, num_tokens=100):
    """`num` samples start together, and each token takes `token_s` seconds."""
    samples = [SampleId(f"p{gap.now_s}", 0, i) for i in range(num)]
    for sample in samples:
        gap.entered(sample, is_whole=True)
    gap.see(gap.now_s + num_tokens * token_s)
    for sample in samples:
        gap.left(sample, num_tokens)


def train(gap, train_s, num=1):
    gap.began()
    gap.see(gap.now_s + train_s)
    gap.accumulated(num)


def measured(*, a, b, train_s, lengths=(100, 0), **limits):
    gap = make(**limits)
    for num in (8, 2):
        decode(gap, num, a + b * num)
    gap.sampled(lengths)
    train(gap, train_s)
    return gap


def by_hand(width, *, a, b, train_s):
    """Seconds of a round of 32 groups of 8 samples, of 50 tokens and at most 100."""
    together = min(8 * width * 50 / 100, 64)
    token_s = a + b * together
    first_s, rollout_s = 100 * token_s, 32 * 8 * 50 * token_s / together
    return max(first_s + 32 * train_s, rollout_s + train_s)


def test_where_company_costs_nothing_the_frontier_takes_all_that_speeds_it_up():
    costs = {"a": 0.1, "b": 0.0, "train_s": 0.1}
    gap = measured(**costs)
    # With half of each group's slots in use, sixteen groups fill 64 slots.
    assert by_hand(15, **costs) > by_hand(16, **costs) == by_hand(32, **costs)
    assert gap.width == 32


def test_where_one_rate_is_shared_and_the_trainer_is_slower_one_group_is_enough():
    costs = {"a": 0.0, "b": 0.01, "train_s": 5.0}
    assert by_hand(1, **costs) < by_hand(2, **costs) < by_hand(3, **costs)
    assert measured(**costs).width == 1
    assert measured(**costs, width_min=3).width == 3


def test_where_one_rate_is_shared_and_the_sampler_is_slower_nothing_is_kept_waiting():
    costs = {"a": 0.0, "b": 0.01, "train_s": 1.0}
    # Any width takes 128 s for the samples and trains the last group behind them, as
    # long as the first group is in before 97 s.
    assert by_hand(1, **costs) == by_hand(16, **costs) == 129.0
    assert measured(**costs).width == 32


@pytest.mark.parametrize("train_s", [0.2, 1.0, 2.0, 4.0])
def test_in_between_the_width_ends_a_round_as_early_as_any(train_s):
    costs = {"a": 0.05, "b": 0.004, "train_s": train_s}
    width = measured(**costs).width
    best_s = min(by_hand(w, **costs) for w in range(1, 33))
    assert by_hand(width, **costs) <= 1.01 * best_s


def test_before_the_trainer_is_measured_the_width_is_the_least():
    gap = make(width_min=3)
    assert gap.width == 3
    decode(gap, 8, 0.1)
    gap.sampled((100, 0))
    assert gap.width == 3
    train(gap, 1.0)
    assert gap.width > 3


def test_a_step_is_shared_by_the_groups_of_its_update():
    slow = measured(a=0.0, b=0.01, train_s=1.0)
    assert slow.width == 32
    slow.began()
    slow.see(slow.now_s + 16.0)
    # 16 s over four groups make five a group, so the trainer is the slower.
    slow.stepped(4)
    assert slow.width == 1


def test_several_groups_in_one_hand_off_share_its_time():
    gap = measured(a=0.0, b=0.01, train_s=1.0)
    for _ in range(20):
        train(gap, 4.0, num=4)
    assert gap.width == 32
    for _ in range(20):
        train(gap, 20.0, num=4)
    assert gap.width == 1


def test_samples_in_part_and_those_that_were_lost_are_not_measured():
    gap = make()
    resumed, lost = SampleId("p", 0, 0), SampleId("p", 0, 1)
    gap.entered(resumed, is_whole=False)
    gap.entered(lost, is_whole=True)
    gap.see(10.0)
    gap.left(resumed, 100)
    gap.left(lost)
    assert gap.snapshot()["line"][0] == 0.0


def test_company_is_averaged_over_a_samples_time():
    gap = make()
    first, second = SampleId("p", 0, 0), SampleId("p", 0, 1)
    gap.entered(first, is_whole=True)
    gap.see(6.0)
    gap.entered(second, is_whole=True)
    gap.see(8.0)
    gap.left(first, 4)
    weight, together, token_s, *_ = gap.snapshot()["line"]
    # Alone for six seconds and by two for two, two seconds a token.
    assert (weight, together, token_s) == (1.0, 10 / 8, 2.0)


def test_time_never_goes_back():
    gap = make()
    gap.see(5.0)
    gap.see(3.0)
    assert gap.now_s == 5.0


def test_a_restored_gap_goes_on_without_the_clock_of_before():
    gap = measured(a=0.0, b=0.01, train_s=5.0, width_min=2)
    again = make(width_min=2)
    again.restore(gap.snapshot())
    assert again.width == gap.width == 2
    train(again, 5.0)
    assert again.width == 2
    narrower = make(width_min=1, width_max=4)
    narrower.restore(measured(a=0.1, b=0.0, train_s=0.5).snapshot())
    assert narrower.width == 4
