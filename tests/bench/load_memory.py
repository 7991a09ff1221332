"""Host memory that loading a checkpoint takes: `python -m tests.bench.load_memory`.

Makes a folder of random weights of 1.1 billion parameters, shard by shard, loads it in
a process of its own, prints the peak over the size, and removes the folder. Exit 1
where the peak is 1.3 times the size or more.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from jigsaw_jax.model.families import family_of
from jigsaw_jax.model.hf_folder import CONFIG, INDEX
from jigsaw_jax.model.tensor_names import leaves
from jigsaw_jax.settings import Decoder, sizes
from tests.model import load_peak

RATIO_MAX = 1.3
# TinyLlama's shape.
DECODER = Decoder(
    vocab_size=32_000,
    num_layers=22,
    model_dim=2048,
    hidden_dim=5632,
    num_heads=32,
    num_kv_heads=4,
    head_dim=64,
    tied_head=False,
)


def write_folder(folder: pathlib.Path, dtype: str, shard_bytes: int) -> None:
    """Random tensors in files of about `shard_bytes`, one file in memory at a time."""
    family = family_of(DECODER)
    stored = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)
    rng = np.random.default_rng(0)
    held, filled, places, written = {}, 0, {}, 0

    def flush():
        nonlocal held, filled, written
        written += 1
        name = f"model-{written:05d}.safetensors"
        save_file(held, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(held, name))
        held, filled = {}, 0

    for leaf in leaves(DECODER, family):
        for name in leaf.names.flat:
            values = rng.random(leaf.file_shape, np.float32) - np.float32(0.5)
            held[name] = values.astype(stored)
            filled += held[name].nbytes
            if filled > shard_bytes:
                flush()
    if held:
        flush()
    index = {"metadata": {}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index))
    (folder / CONFIG).write_text(json.dumps(family.config(DECODER)))


def main() -> int:
    """Make, load, print and remove; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--layers", default="scan", choices=("scan", "unrolled"))
    parser.add_argument("--shard_mb", type=int, default=500)
    args = parser.parse_args()
    print(f"{sizes.num_params(DECODER) / 1e9:.2f} billion parameters in {args.dtype}")
    with tempfile.TemporaryDirectory() as name:
        write_folder(pathlib.Path(name), args.dtype, args.shard_mb * 1_000_000)
        start, peak, size = load_peak.measure(name, args.dtype, args.layers)
    ratio, own = peak / size, (peak - start) / size
    print(
        f"weights {size / 1e9:.2f} GB, peak of the process {peak / 1e9:.2f} GB "
        f"({ratio:.2f} times), of loading alone {(peak - start) / 1e9:.2f} GB "
        f"({own:.2f} times)"
    )
    return int(ratio >= RATIO_MAX)


if __name__ == "__main__":
    sys.exit(main())
