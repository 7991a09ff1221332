"""What the sampler's cache may be in a run."""

import dataclasses

import pytest

from jigsaw_jax import settings

DECODER = settings.Decoder(
    vocab_size=64,
    num_layers=1,
    model_dim=8,
    hidden_dim=8,
    num_heads=2,
    num_kv_heads=2,
    head_dim=4,
)
SAMPLER = settings.Sampler(
    slots=4, prompt_buckets=(10,), new_tokens_max=20, cache="pages", page_size=8
)


def _train(sampler=SAMPLER, **others):
    return settings.Train(updates=1, decoder=DECODER, sampler=sampler, **others)


def test_there_are_pages_for_all_slots_where_none_are_asked_for():
    assert SAMPLER.pages_per_slot == 4
    assert SAMPLER.pages_total == 16
    assert dataclasses.replace(SAMPLER, num_pages=5).pages_total == 5


def test_a_longest_trajectory_must_fit_in_each_replicas_pages():
    with pytest.raises(ValueError, match="num_pages must be at least 4, got 3"):
        dataclasses.replace(SAMPLER, num_pages=3)
    few = dataclasses.replace(SAMPLER, num_pages=6)
    _train(few)
    mesh = settings.Mesh(sampler_data=2)
    with pytest.raises(ValueError, match=r"Sampler.num_pages / Mesh.sampler_data"):
        _train(few, mesh=mesh)
    with pytest.raises(ValueError, match=r"Sampler.slots must be a multiple of Mesh"):
        _train(dataclasses.replace(SAMPLER, slots=3), mesh=mesh)
    assert mesh.sampler_devices == 2
    assert mesh.num_devices == 3


def test_int8_needs_a_correction_where_the_old_policy_is_computed_again():
    int8 = dataclasses.replace(SAMPLER, kv_dtype="int8")
    again = settings.Objective(old_policy="recompute")
    _train(int8)
    _train(SAMPLER, objective=again)
    with pytest.raises(ValueError, match=r"Objective.mismatch must be 'truncate' or"):
        _train(int8, objective=again)
    _train(int8, objective=dataclasses.replace(again, mismatch="mask"))


def test_equal_bits_are_for_a_cache_of_exact_slots():
    canonical = dataclasses.replace(DECODER, canonical_tile=8)
    slots = dataclasses.replace(SAMPLER, cache="slots")
    settings.Train(updates=1, decoder=canonical, sampler=slots)
    for sampler in (SAMPLER, dataclasses.replace(slots, kv_dtype="int8")):
        with pytest.raises(ValueError, match=r"'slots' and Sampler.kv_dtype None"):
            settings.Train(updates=1, decoder=canonical, sampler=sampler)


@pytest.mark.parametrize("fewer", [(0,), (2, 2), (3, 2), (2, 4)])
def test_draining_slots_ascend_and_are_fewer_than_all(fewer):
    slots = dataclasses.replace(SAMPLER, cache="slots")
    with pytest.raises(ValueError, match=r"slots_draining must be ascending"):
        dataclasses.replace(slots, slots_draining=fewer)
    assert dataclasses.replace(slots, slots_draining=(2, 3)).slots_draining == (2, 3)


def test_draining_needs_a_cache_of_slots():
    with pytest.raises(ValueError, match=r"cache must be 'slots' where"):
        dataclasses.replace(SAMPLER, slots_draining=(2,))
