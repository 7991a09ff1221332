"""The cached paths against the plain forward pass."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import model
from jigsaw_jax.model import decode
from tests.model.families import FAMILIES, random_params

TOKENS = np.random.default_rng(2).integers(0, 61, (2, 14))
LENGTH = 16
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=3e-5)


# Quick: most options, in the layout of large models. Slow: the rest of the table.
QUICK = {("gemma3", True)}
TABLE = [
    pytest.param(
        (family, scan),
        marks=() if (family, scan) in QUICK else pytest.mark.slow,
        id=f"{family}-{'scanned' if scan else 'unrolled'}",
    )
    for family in FAMILIES
    for scan in (False, True)
]


@pytest.fixture(params=TABLE)
def decoder(request):
    family, scan = request.param
    return dataclasses.replace(FAMILIES[family], scan_layers=scan)


def _forward_logits(decoder, params):
    positions = jnp.broadcast_to(jnp.arange(14), (2, 14))
    ones = jnp.ones((2, 14), int)
    hidden = model.forward(decoder, params, jnp.asarray(TOKENS), positions, ones)
    return model.logits(decoder, params, hidden)


def _decode(decoder, params, cache, starts, ends):
    """Feeds each row its own tokens from its start; logits by (row, position)."""

    @jax.jit
    def step(tokens, positions, cache):
        hidden, cache = decode.decode_step(decoder, params, tokens, positions, cache)
        return model.logits(decoder, params, hidden), cache

    found = {}
    positions = np.array(starts)
    while (positions < ends).any():
        where = np.minimum(positions, 13)
        out, cache = step(jnp.asarray(TOKENS[[0, 1], where]), jnp.asarray(where), cache)
        found |= {(row, where[row]): out[row] for row in (0, 1)}
        positions = positions + 1
    return found, cache


def _put(decoder, cache, slot, part):
    """Writes the cache of one slot, filling the rest of its length with junk."""
    axis = 1 if decoder.scan_layers else 0

    def write(whole, piece):
        missing = [(0, w - p) for w, p in zip(whole.shape, piece.shape, strict=True)]
        missing[axis] = (0, 0)
        piece = jnp.pad(piece, missing, constant_values=7.0)
        return jax.lax.dynamic_update_slice_in_dim(whole, piece, slot, axis)

    return jax.tree.map(write, cache, part)


def test_prefill_and_decode_give_the_logits_of_forward(decoder):
    params = random_params(decoder)
    expected = jax.jit(lambda p: _forward_logits(decoder, p))(params)
    cache = decode.empty_cache(decoder, 2, LENGTH)
    prefill = jax.jit(lambda t: decode.prefill(decoder, params, t))
    # Row 0 has 6 tokens and a padded place; row 1 has 3, and junk in its padding.
    cache = _put(decoder, cache, 0, prefill(jnp.asarray([*TOKENS[0, :6], 0])))
    cache = _put(decoder, cache, 1, prefill(jnp.asarray([*TOKENS[1, :3], 60, 1, 2, 3])))
    found, _ = _decode(decoder, params, cache, (6, 3), (14, 14))
    assert len(found) == 8 + 11
    for (row, position), logits in found.items():
        assert_close(logits, expected[row, position])


def test_a_chunk_extends_a_cache_as_single_steps_do(decoder):
    params = random_params(decoder)
    expected = jax.jit(lambda p: _forward_logits(decoder, p))(params)
    cache = decode.empty_cache(decoder, 1, LENGTH)
    prefill = jax.jit(lambda t: decode.prefill(decoder, params, t))
    first = prefill(jnp.asarray(TOKENS[0, :4]))
    cache = _put(decoder, cache, 0, first)
    chunk = np.pad(TOKENS[0, 4:10], (0, 9), constant_values=5)
    cache = jax.jit(
        lambda c: decode.extend(decoder, params, jnp.asarray(chunk), jnp.int32(4), c)
    )(cache)

    @jax.jit
    def step(tokens, positions):
        hidden, _ = decode.decode_step(decoder, params, tokens, positions, cache)
        return model.logits(decoder, params, hidden)

    logits = step(jnp.asarray(TOKENS[0, 10:11]), jnp.asarray([10]))
    assert_close(logits[0], expected[0, 10])
