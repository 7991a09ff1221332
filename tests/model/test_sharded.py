"""Over 8 devices a model has the loss and the gradients that it has on one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model, settings
from tests.model.families import GEMMA2, QWEN2, QWEN3, QWEN3_MOE, random_params

ROWS, LENGTH = 8, 16
# The last has more devices on "tensor" than there are key-value heads.
MESHES = [(1, 8, 1), (1, 4, 2), (2, 2, 2), (1, 2, 4)]
DECODERS = {
    "dense": QWEN3,
    "biased": QWEN2,
    "experts": QWEN3_MOE,
    "capped": GEMMA2,
    "adapted": dataclasses.replace(QWEN3, lora=settings.Lora(rank=3)),
}


def _loss(decoder, params, tokens_BT, positions_BT, segments_BT):
    """Mean negative logprob of the next token within each packed sequence."""
    hidden = model.forward(decoder, params, tokens_BT, positions_BT, segments_BT)
    logprobs = jax.nn.log_softmax(model.logits(decoder, params, hidden))[:, :-1]
    of_next = jnp.take_along_axis(logprobs, tokens_BT[:, 1:, None], -1)[..., 0]
    counts = segments_BT[:, 1:] == segments_BT[:, :-1]
    return -jnp.sum(jnp.where(counts, of_next, 0.0)) / jnp.sum(
        counts, dtype=jnp.float32
    )


def _rows():
    tokens = np.random.default_rng(3).integers(0, 62, (ROWS, LENGTH))
    segments = np.repeat([[1, 2]], [7, LENGTH - 7], axis=1).repeat(ROWS, 0)
    positions = np.concatenate([np.arange(7), np.arange(LENGTH - 7)])[None]
    return tokens, positions.repeat(ROWS, 0), segments


@pytest.mark.slow
@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_sharded_loss_and_gradients_equal_unsharded(name, shape):
    unrolled = dataclasses.replace(DECODERS[name], vocab_size=64)
    decoder = dataclasses.replace(unrolled, scan_layers=name == "experts")
    params = random_params(unrolled)
    params = model.stack(params) if decoder.scan_layers else params
    run = jax.jit(jax.value_and_grad(_loss, 1), static_argnums=0)
    loss, gradients = run(decoder, params, *_rows())

    data, fsdp, tensor = shape
    setting = settings.Mesh(data=data, fsdp=fsdp, tensor=tensor, shared=True)
    mesh = meshes.learner_mesh(setting, jax.devices())
    spread = meshes.sharding_tree(mesh, model.logical_axes(decoder), params)
    rows = jax.device_put(_rows(), meshes.rows_sharding(mesh))
    # As the learner runs it: arrays are held to the mesh inside the program.
    placed = meshes.on_mesh(mesh, functools.partial(_loss, decoder))
    run = jax.jit(jax.value_and_grad(placed), out_shardings=(None, spread))
    sharded = run(jax.device_put(params, spread), *rows)
    assert sharded[0] == pytest.approx(float(loss), abs=1e-5)
    # Relative to the largest gradient, which is of size one: sums over devices round
    # elsewhere.
    largest = max(np.abs(x).max() for x in jax.tree.leaves(gradients))
    assert 0.1 < largest < 100
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest),
        sharded[1],
        gradients,
    )


@pytest.mark.slow
@pytest.mark.parametrize("favourite", [None, 3])
def test_equal_experts_are_one_dense_layer_however_unevenly_they_are_chosen(favourite):
    dense, experts = QWEN3, QWEN3_MOE
    params = random_params(dense)
    mixed = random_params(experts)
    for name, layer in mixed["layers"].items():
        of_dense = params["layers"][name]
        for leaf, value in of_dense.items():
            layer[leaf] = value
            if leaf in ("gate", "up", "down"):
                layer[leaf] = jnp.repeat(value[None], experts.num_experts, axis=0)
        if favourite is not None:
            layer["router"] = jnp.zeros_like(layer["router"]).at[:, favourite].set(9.0)
    mixed["ends"] = params["ends"]
    rows = [jnp.asarray(each) for each in _rows()]
    forward = jax.jit(model.forward, static_argnums=0)
    one, two = (
        forward(decoder, weights, *rows)
        for decoder, weights in ((dense, params), (experts, mixed))
    )
    # Hidden states are normalised: of size one to three.
    np.testing.assert_allclose(two, one, atol=2e-5)
