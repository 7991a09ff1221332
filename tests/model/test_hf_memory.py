"""Loading a checkpoint takes little more host memory than the weights."""

import subprocess
import sys

import jax
import pytest

from jigsaw_jax import model
from jigsaw_jax.model.hf_export import export_folder
from jigsaw_jax.settings import Decoder

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

SCRIPT = """
import dataclasses, pathlib, sys
import jax
from jigsaw_jax.model.hf_folder import Folder
from jigsaw_jax.model.hf_load import load_folder

folder = Folder(sys.argv[1])
decoder = dataclasses.replace(
    folder.decoder, param_dtype="bfloat16", scan_layers=sys.argv[2] == "scan"
)
jax.block_until_ready(jax.numpy.zeros(3))

def peak():
    # getrusage would give the parent's peak where it is larger.
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM"))

start = peak()
params = jax.block_until_ready(load_folder(folder, decoder))
size = sum(x.nbytes for x in jax.tree.leaves(params))
print((peak() - start) / size)
"""


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
    run = [sys.executable, "-c", SCRIPT, str(checkpoint), layers]
    out = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert 0.9 < float(out) < 1.3, out
