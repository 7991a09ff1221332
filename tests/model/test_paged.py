"""Pages against the reference of JAX's kernel, and heads over devices."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as library

from jigsaw_jax.model import decode, paged
from jigsaw_jax.settings import Decoder

DECODER = Decoder(
    vocab_size=16,
    num_layers=2,
    model_dim=16,
    hidden_dim=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    sliding_window=9,
    global_every=2,
    attention_soft_cap=3.0,
)
PAGING = paged.Paging(
    page_size=8,
    length=40,
    num_pages=16,
    kv_dtype=None,
    replicas=1,
    tensor=1,
    kernel=True,
)


def _slots():
    tables = np.zeros((3, 5), np.int32)
    tables[0] = [3, 1, 4, 5, 9]
    tables[1, :3] = [2, 6, 7]
    tables[2, :1] = [10]
    return paged.SlotPages(
        jnp.asarray(tables),
        jnp.asarray([37, 17, 3], jnp.int32),
        jnp.asarray([True, True, True]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 1])
def test_both_ways_to_attend_are_that_of_the_kernels_reference(monkeypatch, layer):
    """Layer 0 has a window of nine tokens, layer 1 sees all."""
    called = []

    def reference(*args, num_kv_pages_per_block, num_queries_per_block, **options):
        called.append((num_kv_pages_per_block, num_queries_per_block))
        inspect.signature(library.ragged_paged_attention).bind(*args, **options)
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return library.ref_ragged_paged_attention(*args, **options)

    monkeypatch.setattr(paged.ragged, "ragged_paged_attention", reference)
    rng = np.random.default_rng(0)
    pool = jnp.asarray(rng.normal(size=(16, 8, 4, 8)), jnp.float32)
    q_BNH = jnp.asarray(rng.normal(size=(3, 4, 8)), jnp.float32)
    slots = _slots()
    args = (pool, slots, slots.tables_BO, q_BNH)
    by_kernel = paged._by_kernel(DECODER, layer, *args)
    gathered = paged._gathered(DECODER, PAGING, layer, *args)
    np.testing.assert_allclose(gathered, by_kernel, rtol=1e-5, atol=1e-5)
    # A block is no longer than a table, nor than 256 tokens.
    assert called == [(5, 3)]
    # The window makes a difference, so the comparison above does.
    other = paged._gathered(DECODER, PAGING, 1 - layer, *args)
    assert jnp.abs(other - gathered)[:2].max() > 1e-2


@pytest.mark.parametrize(
    ("heads", "tensor", "cached"), [(2, 4, 4), (4, 2, 4), (3, 2, 3)]
)
def test_a_head_is_repeated_where_devices_are_a_multiple(heads, tensor, cached):
    assert paged.cached_heads(heads, tensor) == cached
    decoder = dataclasses.replace(DECODER, num_heads=12, num_kv_heads=heads)
    paging = dataclasses.replace(PAGING, tensor=tensor)
    rng = np.random.default_rng(1)
    layer = decode.KeysValues(
        jnp.asarray(rng.normal(size=(1, heads, 8, 11)), jnp.float32),
        jnp.asarray(rng.normal(size=(1, heads, 11, 8)), jnp.float32),
    )
    pages = paged.to_pages(decoder, paging, layer)
    assert pages.shape == (2, 8, 2 * cached, 8)
    # Keys and values of a head stand side by side, a repeated head behind itself.
    times = cached // heads
    for place in (0, 7, 10):
        for head in range(cached):
            row = pages[place // 8, place % 8]
            k, v = layer.k_BKHS[0, head // times], layer.v_BKSH[0, head // times]
            np.testing.assert_array_equal(row[2 * head], k[:, place])
            np.testing.assert_array_equal(row[2 * head + 1], v[place])
    assert not pages[1, 3:].any()
    back = paged.from_pages(decoder, dataclasses.replace(paging, length=11), pages)
    jax.tree.map(np.testing.assert_array_equal, back, layer)


def test_the_kernel_is_for_what_it_can_do():
    assert not paged.has_kernel(DECODER, "tpu", None)
    fit = dataclasses.replace(DECODER, head_dim=128, dtype="bfloat16")
    assert paged.has_kernel(fit, "tpu", None)
    assert not paged.has_kernel(fit, "cpu", None)
    assert not paged.has_kernel(fit, "tpu", "int8")
    # Wider heads: only one on each device.
    wide = dataclasses.replace(fit, head_dim=256, num_heads=4, num_kv_heads=4)
    assert [paged.has_kernel(wide, "tpu", None, n) for n in (1, 2, 4, 8)] == [
        False,
        False,
        True,
        True,
    ]
