import dataclasses

import jax
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model, settings
from jigsaw_jax.model import lora
from jigsaw_jax.runtime.channel import WeightChannel

DECODER = settings.Decoder(
    vocab_size=16,
    num_layers=2,
    model_dim=8,
    hidden_dim=16,
    num_heads=4,
    num_kv_heads=1,
    head_dim=4,
)


def make_channel(tensor):
    mesh = settings.Mesh(sampler_tensor=tensor)
    return WeightChannel(DECODER, meshes.sampler_mesh(mesh, jax.devices()))


@pytest.mark.parametrize("tensor", [1, 4])
def test_every_leaf_arrives_with_its_own_values(tensor):
    params = model.init_params(DECODER, 0)
    leaves, structure = jax.tree.flatten(params)
    marked = structure.unflatten(
        [np.full(leaf.shape, i, leaf.dtype) for i, leaf in enumerate(leaves)]
    )
    sent = make_channel(tensor).send(jax.tree.map(jax.numpy.asarray, marked))
    jax.tree.map(np.testing.assert_array_equal, sent, marked)
    on = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(sent)}
    assert on == {tensor}


def test_an_unmatched_leaf_is_refused_by_name():
    params = model.init_params(DECODER, 0)
    params["layers"]["extra"] = params["ends"]
    with pytest.raises(ValueError, match=r"leaf for leaf, got \d+ unmatched.*extra"):
        make_channel(1).send(params)


def test_adapters_travel_without_the_base_and_the_base_without_them():
    decoder = dataclasses.replace(DECODER, lora=settings.Lora(rank=2))
    mesh = meshes.sampler_mesh(settings.Mesh(), jax.devices())
    channel = WeightChannel(decoder, mesh)
    trained, frozen = lora.split(model.init_params(decoder, 0))
    jax.tree.map(np.testing.assert_array_equal, channel.send(trained), trained)
    jax.tree.map(np.testing.assert_array_equal, channel.send_frozen(frozen), frozen)
    for send, wrong in ((channel.send, frozen), (channel.send_frozen, trained)):
        with pytest.raises(ValueError, match="leaf for leaf"):
            send(wrong)
