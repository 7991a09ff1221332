"""Loading a checkpoint takes little more host memory than the weights."""

import jax
import pytest

from jigsaw_jax import model
from jigsaw_jax.model.hf_export import export_folder
from jigsaw_jax.settings import Decoder
from tests.model import load_peak

# 0.3 billion parameters in bfloat16, 0.6 GB: twice what JAX itself takes.
DECODER = Decoder(
    vocab_size=32_000,
    num_layers=20,
    model_dim=1024,
    hidden_dim=2816,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
    tied_head=False,
    dtype="bfloat16",
    param_dtype="bfloat16",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("big") / "model"
    params = model.init_params(DECODER, 0)
    assert sum(x.size for x in jax.tree.leaves(params)) > 280e6
    export_folder(path, DECODER, params, shard_bytes_max=200_000_000)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["unrolled", "scan"])
def test_the_peak_is_below_1_3_times_the_weights(checkpoint, layers):
    found = load_peak.measure(checkpoint, "bfloat16", layers)
    ratio = (found.peak - found.start) / found.size
    assert 0.9 < ratio < 1.3, found
