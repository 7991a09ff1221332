import pytest

from jigsaw_jax.schedule.groups import verdict


@pytest.mark.parametrize(
    ("values", "drop", "keep"),
    [
        ([0.0, 1.0], None, None),
        ([0.9] * 7, "zero_variance", None),
        ([0.1] * 7, "zero_variance", None),
        ([0.0, 0.0], "zero_variance", None),
        ([1.0, 1.00001], None, None),
        ([None, 1.0, 0.0, 1.0], None, None),
        ([None, 1.0, 1.0], "zero_variance", None),
        ([None, 1.0], "zero_variance", None),
        ([None, None], "no_score", "no_score"),
    ],
)
def test_a_group_trains_by_its_rewards_that_did_not_fail(values, drop, keep):
    assert verdict(values, "drop") == drop
    assert verdict(values, "keep") == keep


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=r"SampleScored\.value must be finite"):
        verdict([0.0, value], "keep")
