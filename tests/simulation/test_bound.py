import pytest

from jigsaw_jax.simulation import outcome, prices
from jigsaw_jax.simulation.bound import bound_of
from tests.simulation.make_train import make


def of(train, groups, *, rewards_s=None, updates=1):
    return bound_of(
        train,
        prices.prices(train),
        groups,
        trained=groups,
        rewards_s=rewards_s or [0.0] * len(groups),
        updates=updates,
    )


def test_both_sums_are_worked_out_by_hand():
    train = make(Costs__group_s=4.0, Costs__step_s=1.0, Sampler__slots=2)
    found = of(train, [[5, 3], [8, 2], [6, 6]], updates=2)
    assert found.rollout_s == 15.0
    assert found.last_s == 5.0
    assert found.first_s == 5.0
    assert found.training_s == 3 * 4 + 2
    assert found.seconds == 20.0


def test_every_update_is_called_for_at_least_once_or_the_round_is():
    costs = {"Costs__group_s": 4.0, "Costs__dispatch_s": 0.5, "Sampler__slots": 2}
    groups = [[5, 3], [8, 2], [6, 6]]
    found = of(make(**costs), groups, updates=2)
    assert (found.training_s, found.last_s) == (13.0, 4.5)
    once = make(**costs, Costs__trains="round", Pipeline__mode="sync")
    assert of(once, groups, updates=2).training_s == 12.5


def test_the_longest_completion_alone_bounds_the_rollout():
    train = make(Sampler__slots=64)
    assert of(train, [[100, 1], [1, 1]]).rollout_s == 100.0


def test_a_shared_rate_bounds_a_group_by_its_whole_work():
    train = make(Costs__decode_s=0.0, Costs__decode_sequence_s=1.0)
    found = of(train, [[5, 3], [8, 2]])
    assert (found.rollout_s, found.first_s) == (18.0, 8.0)


def test_workers_of_two_speeds_share_the_work_out():
    pools = {"quick": {"workers": 1, "speed": 3.0}, "slow": {"workers": 2}}
    train = make(Fleet__pools=pools, Sampler__slots=1)
    # Five tokens a second together; the longest takes 10 s on the quick one.
    assert of(train, [[30, 30], [20, 20]]).rollout_s == pytest.approx(20.0)


@pytest.mark.parametrize("mode", ["sync", "stream"])
@pytest.mark.parametrize("sequence_s", [0.0, 0.5])
@pytest.mark.parametrize(
    "admission",
    ["fifo", "frontier_strict", "frontier_priority", "frontier_adaptive"],
)
def test_no_policy_is_below_the_bound(mode, sequence_s, admission):
    if mode == "sync" and admission == "frontier_adaptive":
        pytest.skip("refused by the settings")
    train = make(
        Pipeline__mode=mode,
        Pipeline__admission=admission,
        Pipeline__groups_per_round=8,
        Costs__decode_sequence_s=sequence_s,
        Costs__decode_token_s=0.001,
        Costs__prefill_token_s=0.01,
        Workload__prompt_tokens=20,
        Workload__reward_s=2.0,
        Workload__reward_sigma=0.5,
        Costs__group_s=15.0,
        Fleet__workers=2,
        Simulation__rounds=2,
    )
    for seed in range(3):
        numbers, _ = outcome.simulate(train, seed)
        assert 0.2 < numbers.efficiency <= 1 + 1e-9
