import dataclasses

import pytest

from jigsaw_jax import settings
from jigsaw_jax.planning import costs, hlo, memory, pages
from jigsaw_jax.planning.chips import CHIPS
from tests.planning import recorded

# Two key-value heads of 16 in bfloat16, keys and values of three layers.
TOKEN = 2 * 2 * 16 * 2 * 3
TRAIN = settings.Train(
    updates=1,
    decoder=settings.Decoder(
        vocab_size=1024,
        num_layers=3,
        model_dim=64,
        hidden_dim=128,
        num_heads=8,
        num_kv_heads=2,
        head_dim=16,
        dtype="bfloat16",
    ),
    sampler=settings.Sampler(
        slots=16,
        prompt_buckets=(128,),
        new_tokens_max=256,
        cache="pages",
        page_size=64,
    ),
    learner=settings.Learner(rows=4, row_tokens=384),
    mesh=settings.Mesh(sampler_data=2, sampler_tensor=2),
)


def test_a_step_reads_pages_up_to_the_mean_end_and_slots_whole():
    # Eight slots a replica, a head a chip.
    assert pages.step_bytes(TRAIN) == 8 * (128 + 128) * TOKEN / 2
    slots = dataclasses.replace(TRAIN.sampler, cache="slots")
    mesh = settings.Mesh(sampler_tensor=2)
    whole = dataclasses.replace(TRAIN, sampler=slots, mesh=mesh)
    assert pages.step_bytes(whole) == 16 * 384 * TOKEN / 2


# With four chips to two heads each has one, where a head can be repeated.
@pytest.mark.parametrize(
    ("tensor", "cache", "held"),
    [(1, "pages", 1), (2, "pages", 1 / 2), (4, "pages", 1 / 2), (4, "slots", 1)],
)
def test_a_chip_has_one_head_of_pages_and_all_heads_of_slots(tensor, cache, held):
    mesh = settings.Mesh(sampler_tensor=tensor)
    sampler = dataclasses.replace(TRAIN.sampler, cache=cache)
    train = dataclasses.replace(TRAIN, mesh=mesh, sampler=sampler)
    assert pages.token_bytes(train) == TOKEN * held
    found = memory.sampler(train).scaled["KV cache"]
    assert found == 16 * 384 * TOKEN * held


def test_pages_are_counted_by_their_number_and_int8_by_its_bytes():
    sampler = dataclasses.replace(TRAIN.sampler, num_pages=20, kv_dtype="int8")
    train = dataclasses.replace(TRAIN, sampler=sampler)
    a_token = 2 * 2 * (16 + 4) * 3
    held = memory.sampler(train).scaled["KV cache"]
    assert held == 10 * 64 * a_token / 2


def test_a_known_kernel_moves_what_is_known_of_it_at_its_share_of_the_bandwidth():
    (known,) = pages.kernels(TRAIN)
    # Blocks of 256 tokens: half a one is read in vain. A layer of a run.
    assert known.hbm_bytes == 8 * (256 + 128) * TOKEN / 2 / 3
    text = recorded.KERNELS.replace(
        'custom_call_target="tpu_custom_call"',
        'custom_call_target="tpu_custom_call", metadata={op_name='
        '"jit(generate)/ragged_paged_attention_kernel/pallas_call"}',
    )
    module, chip = hlo.parse(text), CHIPS["v5e"]
    cost = costs.Walk(module, chip, 8, kernels=(known,)).cost()
    expected = known.hbm_bytes / chip.hbm_bytes_s / pages.BANDWIDTH
    assert cost.kernels_s == pytest.approx(expected)
    unknown = costs.Walk(module, chip, 8).cost()
    part = 2 * 256 * 1024
    assert cost.hbm_bytes == unknown.hbm_bytes - 2 * part + known.hbm_bytes
