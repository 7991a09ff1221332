"""Adapters: nothing at first, then exactly what merging them into the weights gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import model
from jigsaw_jax.model import decode, lora
from jigsaw_jax.model.hf_export import export_folder
from jigsaw_jax.model.hf_folder import Folder
from jigsaw_jax.model.hf_load import load_folder
from jigsaw_jax.settings import Lora
from tests.model.families import GEMMA3, LLAMA, QWEN3, QWEN3_MOE, random_params

ATTENTION = ("query", "key", "value", "output")
DECODERS = {
    "llama": dataclasses.replace(LLAMA, lora=Lora(rank=3)),
    "gemma3": dataclasses.replace(GEMMA3, lora=Lora(rank=2, alpha=3.0)),
    "scanned": dataclasses.replace(QWEN3, scan_layers=True, lora=Lora(rank=3)),
    "some": dataclasses.replace(QWEN3, lora=Lora(rank=5, targets=("q.*", "down"))),
    "experts": dataclasses.replace(QWEN3_MOE, lora=Lora(rank=3, targets=ATTENTION)),
}
TOKENS = np.random.default_rng(1).integers(0, 62, (2, 14), np.int32)


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name == "llama" else pytest.mark.slow)
        for name in DECODERS
    ]
)
def decoder(request):
    return DECODERS[request.param]


def whole(decoder, params):
    """Hidden states of two rows."""
    tokens = jnp.asarray(TOKENS)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    forward = jax.jit(model.forward, static_argnums=0)
    return np.asarray(forward(decoder, params, tokens, positions, positions * 0 + 1))


def stepped(decoder, params):
    """Hidden states of the first row behind a cache."""

    @jax.jit
    def run(params, tokens):
        cache = decode.empty_cache(decoder, 1, 16)
        cache = decode.extend(decoder, params, tokens[:-1], jnp.int32(0), cache)
        return decode.decode_step(
            decoder, params, tokens[-1:], jnp.array([len(tokens) - 1]), cache
        )[0]

    return np.asarray(run(params, jnp.asarray(TOKENS[0], jnp.int32)))


def merged(decoder, params):
    """The base with every adapter inside its weight."""
    _, base = lora.split(params)
    paths = jax.tree_util.tree_flatten_with_path(base)
    leaves = [
        lora.merged(decoder, params, tuple(key.key for key in path))
        for path, _ in paths[0]
    ]
    return jax.tree.unflatten(jax.tree.structure(base), leaves)


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["gemma3", "experts"], indirect=True)
def test_the_first_policy_is_the_base_to_the_bit(decoder):
    params, base = (model.init_params(d, 4) for d in (decoder, decoder.base))
    trained, frozen = lora.split(params)
    jax.tree.map(np.testing.assert_array_equal, frozen, base)
    assert set(trained) == {"adapters"}
    # Compiled, XLA fuses the sum with what follows and rounds that elsewhere.
    with jax.disable_jit():
        for run in (whole, stepped):
            np.testing.assert_array_equal(run(decoder, params), run(decoder.base, base))
    for run in (whole, stepped):
        ours, wanted = run(decoder, params), run(decoder.base, base)
        np.testing.assert_allclose(ours, wanted, atol=5e-6)


@pytest.mark.slow
def test_adapters_do_what_the_merged_weights_do(decoder):
    params = random_params(decoder)
    base = merged(decoder, params)
    # Hidden states are normalised: of size one to ten.
    for run in (whole, stepped):
        ours = run(decoder, params)
        np.testing.assert_allclose(ours, run(decoder.base, base), atol=3e-5)
        assert np.abs(ours - run(decoder.base, lora.split(params)[1])).max() > 0.1


def test_merging_by_hand():
    decoder = dataclasses.replace(LLAMA, lora=Lora(rank=2, alpha=6.0))
    params = random_params(decoder)
    pair = jax.device_get(params["adapters"]["001"]["output"])
    delta = 3.0 * np.einsum("nhz,zd->nhd", pair["a"], pair["b"])
    ours = lora.merged(decoder, params, ("layers", "001", "output"))
    np.testing.assert_allclose(ours, params["layers"]["001"]["output"] + delta, 1e-5)
    norm = lora.merged(decoder, params, ("layers", "001", "mlp_norm"))
    assert norm is params["layers"]["001"]["mlp_norm"]


@pytest.mark.slow
def test_values_do_not_depend_on_whether_layers_are_scanned():
    unrolled = DECODERS["llama"]
    scanned = dataclasses.replace(unrolled, scan_layers=True)
    one, two = (model.init_params(d, 5) for d in (unrolled, scanned))
    jax.tree.map(np.testing.assert_array_equal, model.stack(one), two)
    jax.tree.map(np.testing.assert_array_equal, one, model.unstack(two))
    first, second = (one["adapters"][name]["query"]["a"] for name in ("000", "001"))
    assert np.abs(first - second).max() > 0.01
    # Uniform between plus and minus the root of 1 / 24.
    assert 0.18 < np.abs(first).max() < 24**-0.5
    assert not np.any(one["adapters"]["000"]["query"]["b"])


@pytest.mark.slow
def test_adapters_are_float32_beside_a_bfloat16_base():
    narrow = dataclasses.replace(
        DECODERS["llama"], dtype="bfloat16", param_dtype="bfloat16"
    )
    params = model.init_params(narrow, 0)
    trained, frozen = lora.split(params)
    assert {x.dtype.name for x in jax.tree.leaves(trained)} == {"float32"}
    assert {x.dtype.name for x in jax.tree.leaves(frozen)} == {"bfloat16"}
    assert whole(narrow, params).dtype == jnp.bfloat16
    with jax.disable_jit():
        np.testing.assert_array_equal(whole(narrow, params), whole(narrow.base, frozen))


def test_equations_of_a_product_with_two_inputs():
    assert lora.equations("BTNH,NHD->BTD") == ("BTNH,NHY->BTY", "BTY,YD->BTD")
    assert lora.equations("BTD,DNH->BTNH") == ("BTD,DY->BTY", "BTY,YNH->BTNH")


def test_an_export_holds_the_merged_weights(decoder, tmp_path):
    params = random_params(decoder)
    export_folder(tmp_path / "out", decoder, params)
    folder = Folder(tmp_path / "out")
    folder.check(decoder)
    loaded = load_folder(folder, decoder.base)
    jax.tree.map(np.testing.assert_array_equal, loaded, merged(decoder, params))


def test_a_bfloat16_base_is_merged_before_it_is_rounded(tmp_path):
    decoder = dataclasses.replace(DECODERS["llama"], param_dtype="bfloat16")
    params = random_params(DECODERS["llama"])
    params |= jax.tree.map(lambda x: x.astype(jnp.bfloat16), lora.split(params)[1])
    export_folder(tmp_path / "out", decoder, params)
    loaded = load_folder(Folder(tmp_path / "out"), decoder.base)
    exact = merged(decoder, params)
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x, y.astype(jnp.bfloat16)),
        loaded,
        exact,
    )
