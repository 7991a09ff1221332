"""The decoder against a NumPy double, and the invariances of packed rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model
from jigsaw_jax.settings import Mesh
from tests.model import naive
from tests.model.families import FAMILIES, GEMMA3, QWEN3, random_params

TOKENS = np.random.default_rng(1).integers(0, 61, 13)

# Float32 sums of up to 40 terms of size one, through 4 layers: about 100 roundings of
# 6e-8 on logits of size 10.
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=3e-5)


QUICK = ("qwen3_moe", "gemma3")


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in FAMILIES
    ]
)
def decoder(request):
    return FAMILIES[request.param]


@functools.partial(jax.jit, static_argnums=0)
def _run(decoder, params, tokens_BT, positions_BT, segments_BT):
    hidden = model.forward(decoder, params, tokens_BT, positions_BT, segments_BT)
    return model.logits(decoder, params, hidden)


def _logits(decoder, params, tokens_BT, segments_BT, positions_BT=None):
    if positions_BT is None:
        positions_BT = np.broadcast_to(np.arange(len(tokens_BT[0])), tokens_BT.shape)
    return np.asarray(_run(decoder, params, tokens_BT, positions_BT, segments_BT))


def test_forward_equals_a_naive_float64_decoder(decoder):
    params = random_params(decoder)
    ours = _logits(decoder, params, TOKENS[None], np.ones((1, 13), int))[0]
    theirs = naive.logits(decoder, params, TOKENS)
    assert np.abs(theirs).max() > 3
    assert_close(ours, theirs)


def test_scanned_layers_equal_unrolled_layers(decoder):
    scanned = dataclasses.replace(decoder, scan_layers=True)
    params = random_params(decoder)
    ones = np.ones((1, 13), int)
    assert_close(
        _logits(scanned, model.stack(params), TOKENS[None], ones),
        _logits(decoder, params, TOKENS[None], ones),
    )


def test_initial_weights_do_not_depend_on_scanning_and_stacking_is_undone(decoder):
    scanned = dataclasses.replace(decoder, scan_layers=True)
    params = model.init_params(decoder, 3)
    jax.tree.map(
        np.testing.assert_array_equal,
        model.init_params(scanned, 3),
        model.stack(params),
    )
    jax.tree.map(
        np.testing.assert_array_equal, model.unstack(model.stack(params)), params
    )


def test_initial_weights_are_normal_with_the_given_scale_and_norms_are_neutral():
    for decoder in (QWEN3, GEMMA3):
        params = model.init_params(decoder, 7)
        table = np.asarray(params["ends"]["embedding"])
        # 1488 values: the standard error of their deviation is 2 %.
        assert abs(table.std() / 0.3 - 1) < 0.08
        norm = 0.0 if decoder.norm_has_offset else 1.0
        assert (np.asarray(params["layers"]["001"]["mlp_norm"]) == norm).all()
        layers = [params["layers"][f"00{i}"]["query"] for i in range(2)]
        assert not np.array_equal(layers[0], layers[1])
        assert not np.array_equal(params["ends"]["embedding"][:, :8], layers[0][:, 0])


@pytest.mark.parametrize("scan", [False, True])
def test_logical_axes_name_every_dim_of_every_leaf(decoder, scan):
    decoder = dataclasses.replace(decoder, scan_layers=scan)
    sizes = {
        "vocab": 62, "embed": 24, "mlp": 40, "heads": 4, "kv_heads": 2, "head_dim": 8,
        "layers": 2, "expert": 5,
    }  # fmt: skip
    params, axes = model.init_params(decoder, 0), model.logical_axes(decoder)

    def check(path, leaf, names):
        shape = tuple(sizes[name] for name in names)
        if path[-1].key.endswith("_bias"):
            shape = (*shape[:-1], shape[-1] * decoder.head_dim)
        assert leaf.shape == shape

    jax.tree_util.tree_map_with_path(check, params, axes)


def test_packed_sequences_do_not_see_each_other(decoder):
    params = random_params(decoder)
    parts = (TOKENS[:5], TOKENS[5:6], TOKENS[6:])
    segments = np.repeat([1, 2, 3], [5, 1, 7])
    positions = np.concatenate([np.arange(len(p)) for p in parts])
    packed = _logits(decoder, params, TOKENS[None], segments[None], positions[None])[0]
    alone = [
        _logits(decoder, params, p[None], np.ones((1, len(p)), int))[0] for p in parts
    ]
    assert_close(packed, np.concatenate(alone))

    poisoned = TOKENS.copy()
    poisoned[:5] = TOKENS[:5][::-1]
    again = _logits(decoder, params, poisoned[None], segments[None], positions[None])[0]
    np.testing.assert_array_equal(again[5:], packed[5:])


@pytest.mark.parametrize("pad", [0, 3, 17])
def test_padding_does_not_matter_whatever_stands_in_it(decoder, pad):
    params = random_params(decoder)
    alone = _logits(decoder, params, TOKENS[None], np.ones((1, 13), int))[0]
    for junk in (0, 60, -7, 10**6):
        tokens = np.pad(TOKENS, (pad, pad), constant_values=junk)[None]
        segments = np.pad(np.ones(13, int), pad)[None]
        positions = np.pad(np.arange(13), pad)[None]
        padded = _logits(decoder, params, tokens, segments, positions)[0]
        assert np.isfinite(padded).all()
        assert_close(padded[pad : pad + 13], alone)


@pytest.mark.slow
@pytest.mark.parametrize("save", ["nothing", "products"])
def test_rematerialised_gradients_equal_plain_ones(save):
    decoder = GEMMA3
    params = random_params(decoder)
    ones = jnp.ones((1, 13), int)
    where = jnp.arange(13)[None]

    def loss(params, remat):
        hidden = model.forward(
            decoder, params, jnp.asarray(TOKENS)[None], where, ones, remat=remat
        )
        return jnp.mean(jnp.square(model.logits(decoder, params, hidden)))

    plain, remat = (
        jax.jit(jax.grad(loss), static_argnums=1)(params, r) for r in (None, save)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        plain,
        remat,
    )


def test_sharded_forward_equals_unsharded():
    decoder = QWEN3
    params = random_params(decoder)
    mesh = jax.make_mesh(
        (2, 2), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    table = {"heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "embed": "fsdp"}
    sharded = jax.tree.map(
        lambda leaf, axes: jax.device_put(
            leaf,
            jax.sharding.NamedSharding(
                mesh, jax.sharding.PartitionSpec(*[table.get(a) for a in axes])
            ),
        ),
        params,
        model.logical_axes(decoder),
    )
    ones = jnp.ones((2, 13), int)
    tokens = jnp.asarray(np.stack([TOKENS, TOKENS[::-1]]))
    where = jnp.broadcast_to(jnp.arange(13), (2, 13))

    def run(params):
        hidden = model.forward(decoder, params, tokens, where, ones)
        return model.logits(decoder, params, hidden)

    assert_close(jax.jit(run)(sharded), jax.jit(run)(params))


@pytest.mark.slow
def test_bfloat16_computes_norms_and_logits_in_float32():
    decoder = dataclasses.replace(QWEN3, dtype="bfloat16")
    params = random_params(decoder)
    ours = _logits(decoder, params, TOKENS[None], np.ones((1, 13), int))[0]
    assert ours.dtype == np.float32
    theirs = naive.logits(decoder, params, TOKENS)
    # 8 bits of mantissa: 0.4 % a rounding on logits of size 10.
    assert np.abs(ours - theirs).max() < 0.04 * np.abs(theirs).max()


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [64, 62])
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_spread_over_the_vocabulary_gives_the_same_logits_and_gradients(
    vocab, tied
):
    decoder = dataclasses.replace(QWEN3, vocab_size=vocab, tied_head=tied)
    params = model.init_params(decoder, 0)
    hidden_BTD = jax.random.normal(jax.random.key(1), (8, 3, decoder.model_dim))
    mesh = meshes.learner_mesh(Mesh(fsdp=4, tensor=2, shared=True), jax.devices())

    def loss(params, hidden_BTD):
        logits_BTV = model.head(decoder, params)(hidden_BTD)
        return jnp.sum(jnp.sin(logits_BTV)), logits_BTV

    step = jax.grad(loss, has_aux=True, argnums=(0, 1))
    alone = jax.jit(step)(params, hidden_BTD)
    placed = jax.device_put((params, hidden_BTD), meshes.replicated(mesh))
    spread = jax.jit(meshes.on_mesh(mesh, step))(*placed)
    of_logits = spread[1].sharding.shard_shape(spread[1].shape)
    assert of_logits == ((8, 3, 8) if vocab == 64 else (2, 3, 62))
    # Sums of up to 64 terms of size one in another order: 64 roundings of 6e-8.
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=4e-6)
