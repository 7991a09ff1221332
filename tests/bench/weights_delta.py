"""`python -m tests.bench.weights_delta`: how small a step's difference is, how fast.

Normal weights of scale 0.02 take a step of at most --rate an element, as Adam's are.
Prints the share of elements that changed, and bytes and processor time of the delta.
"""

import argparse
import time

import jax.numpy as jnp
import numpy as np

from jigsaw_jax.runtime.weights import delta


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=8_000_000)
    parser.add_argument("--rate", type=float, nargs="+", default=[1e-6, 1e-5])
    args = parser.parse_args()
    chance = np.random.default_rng(0)
    weights = chance.standard_normal(args.elements) * 0.02
    step = np.clip(chance.standard_normal(args.elements), -1, 1)
    for rate in args.rate:
        for dtype in (jnp.dtype("float32"), jnp.dtype("bfloat16")):
            old, new = (x.astype(dtype) for x in (weights, weights + rate * step))
            print(f"{rate:g} {dtype.name:9}", measured(old, new))


def measured(old: np.ndarray, new: np.ndarray) -> str:
    mbytes, width = new.nbytes / 1e6, new.dtype.itemsize
    old_u8, new_u8 = old.view(np.uint8), new.view(np.uint8)
    start_s = time.process_time()
    sent = delta.encode(new_u8, old_u8, width)
    encode_s = time.process_time() - start_s
    changed = f"{np.mean(old != new):.1%} changed"
    if sent is None:
        return f"{changed}, sent whole"
    start_s = time.process_time()
    difference = delta.decode(sent, len(new_u8), width)
    decode_s = time.process_time() - start_s
    assert np.array_equal(old_u8 ^ difference, new_u8)
    return (
        f"{changed}, {len(sent) / len(new_u8):.1%} of the bytes, encoded at "
        f"{mbytes / encode_s:.0f} MB/s, decoded at {mbytes / decode_s:.0f} MB/s"
    )


if __name__ == "__main__":
    main()
