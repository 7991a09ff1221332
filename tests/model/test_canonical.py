"""With the canonical option sampler and learner compute the same bits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import model
from jigsaw_jax.model import decoder as decoders
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.settings import Lora, Mesh
from jigsaw_jax.train import gradient, packing, sequences
from tests.model.families import FAMILIES
from tests.parity import mismatch
from tests.sample import tiny
from tests.train import make_groups


def assert_bits_are_equal(pairs):
    assert len(pairs.sampler) > 100
    assert len(np.unique(pairs.sampler)) > 50
    np.testing.assert_array_equal(pairs.sampler, pairs.learner)
    np.testing.assert_array_equal(pairs.sampler, pairs.with_gradient)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "shares"), [("float32", True), ("bfloat16", False)])
def test_sampler_and_learner_agree_in_every_bit(dtype, shares):
    train = mismatch.run_of(
        canonical_tile=8,
        dtype=dtype,
        shared_prefix=shares,
        row_tokens=64,
        temperature=0.7,
    )
    assert_bits_are_equal(mismatch.measure(train))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gemma2", "gemma3", "mistral", "qwen3_moe", "adapted"]
)
def test_each_kind_of_layer_agrees_in_every_bit(name):
    decoder = dataclasses.replace(
        FAMILIES.get(name, FAMILIES["qwen3"]),
        scan_layers=name == "gemma3",
        lora=Lora(rank=3 if name == "adapted" else None),
    )
    train = mismatch.run_of(decoder, canonical_tile=8, shared_prefix=True)
    assert_bits_are_equal(mismatch.measure(train))


@pytest.mark.slow
def test_without_the_option_bits_differ():
    pairs = mismatch.measure(mismatch.run_of())
    assert (pairs.sampler != pairs.learner).any()
    assert np.abs(pairs.sampler - pairs.learner).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("shares", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_it_computes_the_ordinary_logprobs_and_gradients(shares):
    groups = make_groups.make_groups(multi_turn=True)
    found = []
    for tile in (0, 8):
        train = make_groups.run(
            decoder=dataclasses.replace(make_groups.DECODER, canonical_tile=tile),
            shared_prefix=shares,
        )
        params = make_groups.first_params(0)
        trajectories = sequences.trajectories(groups, mask_truncated=False)
        (batch,) = packing.pack(trajectories, packing.shapes_of(train))
        batch = jax.device_put(batch)

        def loss(params, train=train, batch=batch):
            pair = gradient.token_logprobs(train, params, batch, 0.8)
            return sum(jnp.where(batch.mask_RM, x, 0).sum() for x in pair)

        found.append(jax.jit(jax.value_and_grad(loss))(params))
    make_groups.assert_near(*found, atol=2e-5)


def test_a_head_keeps_the_shape_before_the_vocabulary():
    decoder = dataclasses.replace(tiny.DECODER, canonical_tile=4)
    hidden = jax.random.normal(jax.random.key(0), (2, 3, decoder.model_dim))
    ours = model.logits(decoder, tiny.params(), hidden)
    plain = decoders.logits(tiny.DECODER, tiny.params(), hidden)
    assert ours.shape == (2, 3, decoder.vocab_size)
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_observation_is_read_as_a_decode_step_would():
    decoder = dataclasses.replace(tiny.DECODER, canonical_tile=4)
    engine = Engine(decoder, tiny.SAMPLER, None, stop_tokens=())
    tokens, logprobs, *_ = tiny.sample(engine, tiny.params(), (5, 6, 7))
    whole, whole_logprobs, *_ = tiny.sample(
        engine, tiny.params(), (5, 6, 7, *tokens[:4])
    )
    assert whole[:8] == tokens[4:]
    assert whole_logprobs[:8] == logprobs[4:]


def test_several_devices_are_refused():
    decoder = dataclasses.replace(make_groups.DECODER, canonical_tile=8)
    with pytest.raises(
        ValueError, match=r"canonical_tile.*one device each, got 8 with Mesh.data = 2"
    ):
        make_groups.run(decoder=decoder, mesh=Mesh(shared=True, data=2))
