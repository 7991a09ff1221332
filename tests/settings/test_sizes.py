import dataclasses

import jax
import pytest

from jigsaw_jax.model import decoder as model
from jigsaw_jax.settings import (
    Decoder,
    Learner,
    Mesh,
    Objective,
    Pipeline,
    Sampler,
    Train,
    sizes,
)
from jigsaw_jax.train import packing

TINY = Decoder(
    vocab_size=11,
    num_layers=3,
    model_dim=8,
    hidden_dim=20,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"qk_norm": True},
        {"sandwich_norms": True, "norm_has_offset": True, "scale_embedding": True},
        {"tied_head": False},
        {"scan_layers": True, "num_kv_heads": 1},
        {"qkv_bias": True},
        {"num_experts": 5, "experts_per_token": 2},
    ],
    ids=str,
)
def test_parameter_count_is_that_of_the_model(change):
    decoder = dataclasses.replace(TINY, **change)
    params = jax.eval_shape(lambda: model.init_params(decoder, 0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sizes.num_params(decoder) == count


def test_smollm2_has_as_many_parameters_as_its_card_says():
    smollm2 = Decoder(
        vocab_size=49152,
        num_layers=30,
        model_dim=576,
        hidden_dim=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
    )
    assert sizes.num_params(smollm2) == 134_515_008


def test_memory_by_hand():
    train = Train(
        updates=1,
        decoder=dataclasses.replace(TINY, dtype="bfloat16"),
        sampler=Sampler(slots=5, prompt_buckets=(4,), new_tokens_max=6),
        learner=Learner(rows=2, row_tokens=16),
    )
    # A layer: 2 * 8 * 6 * (4 + 2) attention, 3 * 8 * 20 MLP, 2 * 8 norms.
    params = 3 * (576 + 480 + 16) + 11 * 8 + 8
    assert sizes.num_params(train.decoder) == params
    assert sizes.memory_bytes(train) == {
        "learner parameters": 4 * params,
        "sampler parameters": 4 * params,
        "gradient sums (float32)": 4 * params,
        "optimizer moments (float32)": 8 * params,
        # 5 slots of 10 tokens; keys and values of 3 layers, 2 heads of 6, 2 bytes each.
        "KV cache": 5 * 10 * 2 * 3 * 2 * 6 * 2,
        # 6 of a trajectory's 10 tokens are sampled: 10 of a row's 16 at most.
        "logits of a micro-batch": 2 * 10 * 11 * 4,
    }


def test_memory_of_what_only_some_runs_hold():
    learner = Learner(rows=2, row_tokens=96, logprob_chunk=10)
    objective = Objective(kl="k3", kl_coefficient=0.1, old_policy="recompute")
    train = Train(updates=1, decoder=TINY, learner=learner, objective=objective)
    memory = sizes.memory_bytes(train)
    assert memory["logits of a micro-batch"] == 10 * 11 * 4
    assert memory["reference parameters"] == 4 * sizes.num_params(TINY)
    assert memory["round's parameters"] == 4 * sizes.num_params(TINY)


@pytest.mark.parametrize(
    ("rows", "devices", "shapes"),
    [(4, 1, [4, 2, 1]), (12, 2, [12, 6]), (8, 2, [8, 4, 2]), (3, 1, [3])],
)
def test_rows_halve_while_they_divide_as_the_packing_has_it(rows, devices, shapes):
    learner = Learner(rows=rows, row_tokens=96, row_shapes=5)
    mesh = Mesh(data=devices)
    train = Train(updates=1, decoder=TINY, learner=learner, mesh=mesh)
    assert sizes.row_shapes(train) == [(count, 96) for count in shapes]
    packed = packing.shapes_of(train)
    assert list(packed.rows) == shapes
    assert packed.row_trained == sizes.row_trained(train)


def test_a_shared_prompt_leaves_more_of_a_row_to_trained_tokens():
    train = Train(
        updates=1,
        decoder=TINY,
        learner=Learner(rows=4, row_tokens=96, shared_prefix=True),
        sampler=Sampler(prompt_buckets=(16,), new_tokens_max=8),
        pipeline=Pipeline(samples_per_group=4),
    )
    # Four completions of 8 behind a prompt of 16: two thirds of 96.
    assert sizes.row_trained(train) == 64
