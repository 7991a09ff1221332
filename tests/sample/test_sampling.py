"""One draw: distributions by hand, special values, and the edges of the inverse CDF."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.sample import sampling

_draw = jax.jit(sampling.draw)


def _rows(logits, uniforms, temperature=1.0, top_k=0, top_p=1.0):
    """Draws from one distribution with each of the uniforms."""
    b = len(uniforms)
    return _draw(
        jnp.tile(jnp.asarray(logits, jnp.float32)[None], (b, 1)),
        jnp.asarray(uniforms, jnp.float32),
        jnp.full(b, temperature, jnp.float32),
        jnp.full(b, top_k, jnp.int32),
        jnp.full(b, top_p, jnp.float32),
    )


def _by_token(logits, **settings):
    """Token to logprob, for every token that a fine grid of uniforms reaches."""
    out = _rows(logits, np.arange(1024) / 1024, **settings)
    return dict(zip(out.tokens_B.tolist(), out.logprobs_B.tolist(), strict=True))


def test_temperature_divides_logits_and_the_logprobs_say_so():
    found = _by_token([2.0, 0.0], temperature=0.5)
    assert found[0] == pytest.approx(-0.01815, abs=1e-5)
    assert found[1] == pytest.approx(-4.01815, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.8), (4, 0.7)])
def test_logprobs_of_all_drawable_tokens_sum_to_one(temperature, top_k, top_p):
    logits = [0.3, -1.0, 1.2, 0.1, -0.4, 0.9]
    found = _by_token(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert sum(map(math.exp, found.values())) == pytest.approx(1, abs=1e-5)
    if top_k:
        assert len(found) <= top_k
    if top_k == 3 and top_p == 1:
        assert set(found) == {0, 2, 5}


@pytest.mark.parametrize("top_k", [0, -1, 8])
def test_uniform_logits_give_uniform_tokens_whatever_way_top_k_is_off(top_k):
    keys = np.stack([np.full(4000, 5), np.arange(4000)], 1).astype(np.uint32)
    uniforms = sampling.uniforms(jnp.asarray(keys), jnp.full((1, 4000), 17))[0]
    tokens = _rows(np.zeros(8), uniforms, top_k=top_k).tokens_B
    counts = np.bincount(tokens, minlength=8)
    # The 99.9 % quantile of chi-square with 7 degrees of freedom.
    assert ((counts - 500) ** 2 / 500).sum() < 24.32


def test_uniforms_are_the_reference_threefry():
    # Random123's known answer for 20 rounds, key 0, counter 0.
    keys = jnp.zeros((1, 2), jnp.uint32)
    first = sampling.uniforms(keys, jnp.zeros((1, 1), jnp.int32))[0, 0]
    assert first == (0x6B200159 >> 8) / 2**24


def test_top_k_renormalises_and_breaks_ties_by_the_lower_id():
    assert set(_by_token([0.0, 1.0, 1.0, 1.0], top_k=2)) == {1, 2}
    found = _by_token([math.log(p) for p in (0.1, 0.6, 0.05, 0.25)], top_k=2)
    assert found[1] == pytest.approx(math.log(0.6 / 0.85), abs=1e-5)
    assert found[3] == pytest.approx(math.log(0.25 / 0.85), abs=1e-5)
    assert set(_by_token([0.0, 3.0, 1.0], top_k=1)) == {1}


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 0.79, {0, 1}),
        (0, 0.45, {0}),
        (0, 1e-9, {0}),
        (0, 0.81, {0, 1, 2}),
        # Over the two that top-k keeps, the first has 0.5 / 0.8 = 0.625 of the mass.
        (2, 0.6, {0}),
        (2, 0.65, {0, 1}),
    ],
)
def test_top_p_keeps_the_smallest_set_of_that_mass_behind_top_k(top_k, top_p, kept):
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert set(_by_token(logits, top_k=top_k, top_p=top_p)) == kept


def test_greedy_takes_the_first_best_token_and_reports_the_full_distribution():
    out = _rows([1.0, 3.0, 3.0, 0.0], [0.0, 0.99], temperature=0.0, top_k=1)
    assert out.tokens_B.tolist() == [1, 1]
    full = 3 - math.log(math.e + 2 * math.e**3 + 1)
    np.testing.assert_allclose(out.logprobs_B, full, rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_entropy_of_a_uniform_distribution_counts_its_tokens(temperature):
    uniform = _rows(np.full(8, 3.0), [0.5], temperature=temperature)
    assert uniform.entropies_B[0] == pytest.approx(math.log(8), abs=1e-6)
    kept = _rows(np.full(8, 3.0), [0.5], temperature=temperature, top_k=2)
    assert kept.entropies_B[0] == pytest.approx(math.log(2), abs=1e-6)


def test_entropy_follows_temperature():
    p = 1 / (1 + math.exp(-4.0))
    expected = -p * math.log(p) - (1 - p) * math.log(1 - p)
    out = _rows([2.0, 0.0], [0.5], temperature=0.5)
    assert out.entropies_B[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "size",
    [
        1,
        7,
        512,
        *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 3, 64, 500, 1000)),
    ],
)
def test_draws_invert_the_cumulative_distribution(size):
    rng = np.random.default_rng(size)
    logits = 3 * rng.standard_normal(size).astype(np.float32)
    uniforms = rng.integers(0, 2**24, 300) / 2**24
    exact = np.exp(logits.astype(np.float64))
    sums = np.cumsum(exact) / exact.sum()
    drawn = np.asarray(_rows(logits, uniforms).tokens_B)
    # Float32 sums of up to 1000 terms put a boundary at most 1e-6 away.
    below = np.where(drawn > 0, sums[drawn - 1], 0)
    assert (below - 1e-6 <= uniforms).all()
    assert (uniforms <= sums[drawn] + 1e-6).all()


def test_a_token_without_probability_is_never_drawn():
    rng = np.random.default_rng(0)
    edges = [0.0, 2**-24, 0.5, 1 - 2**-24]
    for size in (5, 513):
        logits = 4 * rng.standard_normal((400, size)).astype(np.float32)
        is_dead = rng.random(logits.shape) < 0.7
        is_dead[np.arange(400), rng.integers(0, size, 400)] = False
        logits[is_dead] = rng.choice([-np.inf, -1e30, -200.0], is_dead.sum())
        off = jnp.zeros(400, jnp.int32)
        ones = jnp.ones(400, jnp.float32)
        for uniform in edges:
            out = _draw(jnp.asarray(logits), uniform * ones, ones, off, ones)
            assert not is_dead[np.arange(400), out.tokens_B].any()


def test_a_boundary_between_blocks_never_falls_on_a_token_without_probability():
    rng = np.random.default_rng(2)
    mass = rng.random((400, 512)).astype(np.float32) ** 4
    # Blocks are 32 wide; each begins and ends with tokens that must not be drawn.
    mass.reshape(400, 16, 32)[:, :, [0, 1, 31]] = 0
    sums = mass.reshape(400, 16, 32).sum(2, dtype=np.float64).cumsum(1)
    invert = jax.jit(sampling._invert)
    for block in range(16):
        share = sums[:, block] / sums[:, -1]
        for step in (-1, 0, 1):
            near = np.clip(np.round(share * 2**24) + step, 0, 2**24 - 1) / 2**24
            tokens = invert(jnp.asarray(mass), jnp.asarray(near, jnp.float32))
            assert (mass[np.arange(400), tokens] > 0).all()


def test_a_uniform_at_a_boundary_takes_the_token_above_it():
    assert _rows(np.zeros(4), [0.0, 0.25, 0.5, 0.75]).tokens_B.tolist() == [0, 1, 2, 3]


def test_a_neighbours_filter_leaves_other_rows_bits_alone():
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.standard_normal((64, 100)), jnp.float32)
    uniforms = jnp.asarray(rng.random(64), jnp.float32)
    ones, zeros = jnp.ones(64), jnp.zeros(64, jnp.int32)
    alone = _draw(logits, uniforms, ones, zeros, ones)
    beside = _draw(logits, uniforms, ones, zeros.at[0].set(3), ones.at[1].set(0.5))
    for a, b in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(a[2:], b[2:])
