"""The attention kernel, interpreted, against the einsums; and when it is taken."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model, settings
from jigsaw_jax.model import self_attention, splash
from tests.model.families import GEMMA2, GEMMA3, QWEN3, random_params

# Three blocks of 128 a side, so some are skipped and some are cut by a segment.
LENGTH = 384
# A prompt and two completions that share it, a sequence of its own, padding.
SEGMENTS = np.repeat([1, 2, 3, 4, 0], [150, 40, 70, 100, 24])[None].repeat(2, 0)
PREFIXES = np.repeat([1, 1, 1, 4, 0], [150, 40, 70, 100, 24])[None].repeat(2, 0)
COUNTS = [np.arange(n) for n in (150, 40, 70, 100, 24)]
ALONE = np.concatenate(COUNTS)[None].repeat(2, 0)
SHARED = np.concatenate(
    [COUNTS[0], 150 + COUNTS[1], 150 + COUNTS[2], COUNTS[3], COUNTS[4]]
)[None].repeat(2, 0)


def _output_and_gradients(decoder, kind, has_prefix):
    rng = np.random.default_rng(2)
    q, k, v, weights = (
        jnp.asarray(rng.standard_normal((2, LENGTH, heads, 8)), jnp.float32)
        for heads in (4, 2, 2, 4)
    )
    weights = weights * (SEGMENTS > 0)[..., None, None].astype(np.float32)
    decoder = dataclasses.replace(decoder, attention=kind)
    attend = self_attention.of_rows(
        decoder,
        jnp.asarray(SEGMENTS),
        jnp.asarray(SHARED if has_prefix else ALONE),
        jnp.asarray(PREFIXES) if has_prefix else None,
    )

    def loss(q, k, v):
        out = attend(0, q, k, v)
        return jnp.sum(out * weights), out

    run = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
    gradients, out = run(q, k, v)
    return (np.where((SEGMENTS > 0)[..., None, None], out, 0), *gradients)


@pytest.mark.parametrize(
    ("decoder", "has_prefix", "column_max"),
    [
        pytest.param(QWEN3, False, 1024, marks=pytest.mark.slow),
        (QWEN3, True, 1024),
        # Soft cap and a window of 70 that ends within blocks; two backward kernels.
        pytest.param(
            dataclasses.replace(GEMMA2, sliding_window=70),
            False,
            128,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            dataclasses.replace(GEMMA2, sliding_window=70),
            True,
            128,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["segments", "prefix", "window", "window and prefix"],
)
def test_the_kernel_has_the_values_and_gradients_of_the_einsums(
    decoder, has_prefix, column_max, monkeypatch
):
    monkeypatch.setattr(splash, "COLUMN_MAX", column_max)
    ours = _output_and_gradients(decoder, "splash", has_prefix)
    theirs = _output_and_gradients(decoder, "einsum", has_prefix)
    # Float32 sums of up to 200 terms of size one, of both signs.
    for one, other in zip(ours, theirs, strict=True):
        assert np.abs(other).max() > 1
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_sharded_model_through_the_kernel_is_one_without_it():
    """Two key-value heads on four devices, scanned layers of two kinds, remat."""
    decoder = dataclasses.replace(
        GEMMA3, vocab_size=64, scan_layers=True, sliding_window=50
    )
    params = model.stack(random_params(dataclasses.replace(decoder, scan_layers=False)))
    tokens = np.random.default_rng(3).integers(0, 64, (2, 128))
    rows = (tokens, ALONE[:, :128], SEGMENTS[:, :128])

    def loss(decoder, remat, params, *rows):
        hidden = model.forward(decoder, params, *rows, remat=remat)
        return jnp.mean(jnp.sin(model.logits(decoder, params, hidden)))

    plain = functools.partial(loss, decoder, None)
    want, gradients = jax.jit(jax.value_and_grad(plain))(params, *rows)

    mesh = meshes.learner_mesh(
        settings.Mesh(fsdp=2, tensor=4, shared=True), jax.devices()
    )
    of_kernel = dataclasses.replace(decoder, attention="splash")
    spread = meshes.sharding_tree(mesh, model.logical_axes(decoder), params)
    placed = meshes.on_mesh(mesh, functools.partial(loss, of_kernel, "products"))
    got, sharded = jax.jit(jax.value_and_grad(placed), out_shardings=(None, spread))(
        jax.device_put(params, spread),
        *jax.device_put(rows, meshes.rows_sharding(mesh)),
    )
    assert got == pytest.approx(float(want), abs=1e-5)
    largest = max(np.abs(x).max() for x in jax.tree.leaves(gradients))
    assert largest > 1e-3
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest),
        sharded,
        gradients,
    )


def test_auto_takes_the_kernel_on_a_tpu_in_bfloat16_for_whole_blocks():
    bfloat16 = dataclasses.replace(QWEN3, dtype="bfloat16")
    uses = self_attention.uses_kernel
    assert uses(bfloat16, 256, "tpu")
    assert not uses(bfloat16, 200, "tpu")
    assert not uses(bfloat16, 256, "cpu")
    assert not uses(QWEN3, 256, "tpu")
    assert not uses(dataclasses.replace(bfloat16, attention="einsum"), 256, "tpu")
    assert uses(dataclasses.replace(QWEN3, attention="splash"), 256, "cpu")


def test_the_kernel_refuses_rows_that_are_no_whole_blocks():
    ids = jnp.ones((1, 200), jnp.int32)
    decoder = dataclasses.replace(QWEN3, attention="splash")
    with pytest.raises(ValueError, match=r"multiple of 128 .*got 200; set Decoder"):
        self_attention.of_rows(decoder, ids, ids)
