"""What a cluster's settings refuse before anything is started."""

import dataclasses

import pytest

from jigsaw_jax import settings
from jigsaw_jax.settings.cluster import queue_bytes
from tests.runtime.test_local import make_train


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"heartbeat_s": 0.5}, "Cluster.heartbeat_s must be at least 1"),
        ({"heartbeat_s": 90.0}, "Cluster.building_s must be at least 90"),
        ({"startup_s": 30.0}, "Cluster.startup_s must be at least 60"),
        ({"samplers": -1}, "Cluster.samplers"),
        ({"cores": (0, -1)}, "Cluster.cores"),
        ({"samplers": 1, "role_switch_after": 1}, "take 2"),
        ({"store_bytes": 1}, "Cluster.store_bytes"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(changes, text):
    with pytest.raises(ValueError, match=text):
        settings.Cluster(**changes)


def test_a_round_that_the_queue_has_no_room_for_is_refused_with_what_it_needs():
    train = make_train()
    # 4 groups of 3 completions of 8 tokens of 16 bytes, and 256 bytes each.
    need = 4 * 3 * (8 * 16 + 256)
    assert queue_bytes(train.pipeline, train.sampler) == need
    enough = settings.Cluster(queue_bytes_max=need)
    dataclasses.replace(train, cluster=enough)
    with pytest.raises(ValueError, match=f"at least {need}"):
        dataclasses.replace(train, cluster=settings.Cluster(queue_bytes_max=need - 1))


def test_async_counts_the_groups_that_may_be_stale_too():
    pipeline = make_train(mode="async", size=2, staleness_max=2).pipeline
    sampler = make_train().sampler
    assert queue_bytes(pipeline, sampler) == (2 + 1) * 2 * 3 * (8 * 16 + 256)


@pytest.mark.parametrize(
    ("pipeline", "text"),
    [
        ({"reduction": "ordered"}, "reduction"),
        ({"mode": "async", "staleness_max": 1}, "mode"),
    ],
)
def test_roles_change_only_where_gradients_can_be_summed_in_two_places(pipeline, text):
    switching = settings.Cluster(role_switch_after=1)
    dataclasses.replace(make_train(), cluster=switching)
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(make_train(**pipeline), cluster=switching)
