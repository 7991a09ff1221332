import pytest

from jigsaw_jax.simulation import fleet, outcome, prices
from tests.simulation.make_train import make, shell_of


def test_a_pool_says_what_it_does_not_take_from_the_run():
    pools = {"big": {"workers": 2, "slots": 9, "speed": 2.0}, "small": {"tensor": 1}}
    found = prices.prices(make(Fleet__pools=pools)).members
    assert [(m.name, m.slots, m.tensor, m.speed) for m in found] == [
        ("big/0", 9, 1, 2.0),
        ("big/1", 9, 1, 2.0),
        ("small/0", 4, 1, 1.0),
    ]


def test_workers_of_a_kind_are_counted_together():
    pools = {"a": {"workers": 3}, "b": {"workers": 2, "speed": 0.5}}
    kinds = prices.prices(make(Fleet__pools=pools)).kinds
    assert sorted((member.speed, count) for member, count in kinds) == [
        (0.5, 2),
        (1.0, 3),
    ]


def test_stragglers_are_as_many_as_asked_for_and_the_same_for_a_seed():
    train = make(
        Fleet__workers=400, Fleet__straggler_share=0.25, Fleet__straggler_speed=0.3
    )
    speeds = [member.speed for member in prices.prices(train, 1).members]
    # 400 draws: a standard deviation of 8.7.
    assert speeds.count(0.3) == pytest.approx(100, abs=35)
    assert speeds == [member.speed for member in prices.prices(train, 1).members]
    assert speeds != [member.speed for member in prices.prices(train, 2).members]


def test_a_slow_worker_makes_a_round_longer():
    even = make(Fleet__workers=2, Sampler__slots=2)
    pools = {"quick": {}, "slow": {"speed": 0.25}}
    uneven = make(Fleet__pools=pools, Sampler__slots=2)
    assert (
        outcome.simulate(uneven, 0)[0].train_end_s
        > 1.3 * outcome.simulate(even, 0)[0].train_end_s
    )


def test_lives_are_exponential_with_the_mean_that_was_asked_for():
    train = make(Fleet__failure_every_s=100.0)
    lives = [fleet.lifetime_s(train, 0, "w", life) or 0.0 for life in range(2000)]
    # The standard error is 100 / 45.
    assert sum(lives) / len(lives) == pytest.approx(100, abs=9)
    assert fleet.lifetime_s(make(), 0, "w", 0) is None


def test_a_failed_worker_returns_and_its_samples_are_made_again():
    train = make(
        Fleet__workers=2,
        Fleet__failure_every_s=60.0,
        Fleet__repair_s=10.0,
        Pipeline__attempts_max=100,
        Simulation__rounds=5,
    )
    one = shell_of(train, seed=4)
    trace = one.run()
    calm = shell_of(make(Fleet__workers=2, Simulation__rounds=5), seed=4).run()
    assert trace.windows[4].end_s > calm.windows[4].end_s
    # The same prompts train: a retry of a draw has its own tokens again.
    trained = [sorted(w.trained) for w in trace.windows[:5]]
    assert trained == [sorted(w.trained) for w in calm.windows[:5]]
