import pytest

from jigsaw_jax.records import SampleId
from jigsaw_jax.simulation.workload import Workload, uid
from tests.simulation.make_train import make


def test_drift_moves_the_mean_and_correlation_makes_groups_alike():
    train = make(Workload__length_drift=1.0, Workload__length_sigma=0.0)
    work = Workload(train, 0)
    assert work.tokens(SampleId(uid(0), 0, 0)) == 50
    assert work.tokens(SampleId(uid(4), 0, 0)) == 100
    alike = Workload(make(Workload__group_correlation=1.0), 0)
    lengths = [[alike.tokens(SampleId(uid(p), 0, i)) for i in (0, 1)] for p in range(9)]
    assert all(a == b for a, b in lengths)
    assert len({a for a, _ in lengths}) > 5


def test_log_normal_lengths_have_the_mean_that_was_asked_for():
    work = Workload(make(Workload__length_mean=200.0, Workload__length_sigma=0.5), 0)
    lengths = [work.tokens(SampleId(uid(p), 0, i)) for p in range(1000) for i in (0, 1)]
    # The standard error of 2,000 lengths is 200 x 0.53 / 45 = 2.4.
    assert sum(lengths) / len(lengths) == pytest.approx(200, abs=8)


def test_empirical_lengths_are_those_that_were_given():
    work = Workload(
        make(Workload__lengths="empirical", Workload__length_samples=(3, 9)), 0
    )
    lengths = [work.tokens(SampleId(uid(p), 0, 0)) for p in range(400)]
    assert set(lengths) == {3, 9}
    assert lengths.count(3) == pytest.approx(200, abs=40)


def test_recorded_lengths_repeat_and_keep_to_the_cap():
    train = make(Sampler__new_tokens_max=30)
    work = Workload(train, 0, ((10, 20), (30, 40)))
    found = [[work.tokens(SampleId(uid(p), 0, i)) for i in (0, 1)] for p in range(3)]
    assert found == [[10, 20], [30, 30], [10, 20]]


def test_turns_share_the_tokens_out_and_none_is_empty():
    work = Workload(make(Workload__turns=3), 0, ((10, 2),))
    assert work.legs(SampleId(uid(0), 0, 0)) == [4, 3, 3]
    assert work.legs(SampleId(uid(0), 0, 1)) == [1, 1]


def test_a_retry_and_another_policy_meet_the_same_completion():
    sample = SampleId(uid(7), 0, 1)
    first = Workload(make(), 5)
    again = Workload(make(Pipeline__mode="sync", Pipeline__admission="fifo"), 5)
    assert first.tokens(sample) == again.tokens(sample)
    assert first.tokens(sample) != first.tokens(sample._replace(draw=1))
    assert Workload(make(), 6).tokens(sample) != first.tokens(sample)


def test_rewards_of_a_group_differ_unless_it_is_flat():
    work = Workload(make(Workload__flat_rate=0.3), 0)
    groups = [
        {work.value(SampleId(uid(p), 0, i)) for i in range(4)} for p in range(1000)
    ]
    assert {frozenset(group) for group in groups} == {
        frozenset({0.0, 1.0}),
        frozenset({0.0}),
    }
    # The standard deviation of the share is 0.0145.
    assert groups.count({0.0}) / 1000 == pytest.approx(0.3, abs=0.06)
