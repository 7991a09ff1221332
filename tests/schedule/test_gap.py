import pytest

from jigsaw_jax.schedule.gap import MARGIN_MAX, MARGIN_STEP, Gap


def trained(gap, *, start_s, end_s, num=1, num_left=0):
    gap.see(start_s)
    gap.handed(num_left=num_left)
    gap.see(end_s)
    gap.accumulated(num)


def measured(sample_s, train_s, *, width_min=1, width_max=32):
    """A gap that has seen one group sampled and one trained."""
    gap = Gap(width_min=width_min, width_max=width_max)
    gap.see(sample_s)
    gap.sampled(0.0)
    trained(gap, start_s=sample_s, end_s=sample_s + train_s)
    return gap


def test_the_frontier_is_as_wide_as_littles_law_asks():
    # Groups take 30 s to sample and 6 s to train: five in flight come every 6 s.
    assert measured(30.0, 6.0).width == 5
    assert measured(31.0, 6.0).width == 6
    assert measured(3.0, 6.0).width == 1
    assert measured(3.0, 6.0, width_min=2).width == 2
    assert measured(300.0, 1.0, width_max=8).width == 8


def test_before_anything_is_measured_the_width_is_the_least():
    gap = Gap(width_min=3, width_max=8)
    assert gap.width == 3
    gap.see(10.0)
    gap.sampled(0.0)
    assert gap.width == 3
    # A trainer that takes no time can't be fed too fast.
    trained(gap, start_s=10.0, end_s=10.0)
    assert gap.width == 8


def test_a_step_is_shared_by_the_groups_of_its_update():
    gap = measured(30.0, 4.0)
    assert gap.width == 8
    gap.step_began()
    gap.see(38.0)
    gap.stepped(2)
    # 4 s a group and half of a step of 4 s.
    assert gap.width == 5


def test_several_groups_in_one_hand_off_share_its_time():
    gap = Gap(width_min=1, width_max=32)
    gap.see(24.0)
    gap.sampled(0.0)
    trained(gap, start_s=24.0, end_s=36.0, num=3)
    assert gap.width == 6


def test_a_trainer_that_waited_within_a_round_widens_the_frontier():
    gap = measured(32.0, 4.0)
    trained(gap, start_s=37.0, end_s=41.0)
    assert gap.width == 8 * MARGIN_STEP
    for turn in range(9):
        trained(gap, start_s=45.0 + 5 * turn, end_s=49.0 + 5 * turn)
    assert gap.width == 8 * MARGIN_MAX


def test_a_short_wait_is_chance_and_changes_nothing():
    gap = measured(32.0, 4.0)
    # A fifth of a group's 4 s; a little more widens.
    trained(gap, start_s=36.75, end_s=40.75)
    assert gap.width == 8
    trained(gap, start_s=41.75, end_s=45.75)
    assert gap.width == 8 * MARGIN_STEP


def test_the_wait_for_a_rounds_first_group_is_no_sign_of_a_narrow_frontier():
    gap = measured(32.0, 4.0)
    gap.round_over()
    trained(gap, start_s=90.0, end_s=94.0)
    assert gap.width == 8


def test_groups_that_pile_up_narrow_the_frontier_again():
    gap = measured(32.0, 4.0)
    trained(gap, start_s=37.0, end_s=41.0)
    trained(gap, start_s=41.0, end_s=45.0, num_left=1)
    assert gap.width == 10
    trained(gap, start_s=45.0, end_s=49.0, num_left=2)
    trained(gap, start_s=49.0, end_s=53.0, num_left=2)
    assert gap.width == 8


def test_time_never_goes_back():
    gap = Gap(width_min=1, width_max=8)
    gap.see(5.0)
    gap.see(3.0)
    assert gap.now_s == 5.0


def test_a_restored_gap_goes_on_without_the_clock_of_before():
    gap = measured(32.0, 4.0)
    trained(gap, start_s=37.0, end_s=41.0)
    again = Gap(width_min=1, width_max=32)
    again.restore(gap.snapshot())
    assert again.width == gap.width == 10
    trained(again, start_s=0.0, end_s=4.0)
    assert again.width == pytest.approx(10)
