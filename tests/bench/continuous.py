"""Print what refilling free slots saves over batches that wait for their longest.

    python -m tests.bench.continuous

The requests of one round of `bench/tiny_qwen3_uneven.gin` (128 completions, lengths
geometric with mean 64, cut at 256) go through the same engine and its 32 slots twice:
all queued at once, and in four batches of 32, each begun when the last has ended. The
two take turns; medians. Use a quiet machine.
"""

import argparse
import statistics
import time

from jigsaw_jax import config
from jigsaw_jax.records import SampleId
from jigsaw_jax.runtime.build import build
from jigsaw_jax.runtime.devices import prepare_devices
from jigsaw_jax.runtime.sampler import request_for
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest


def decode(loop: SampleLoop, batches: list[list[SampleRequest]]) -> tuple[float, int]:
    """Seconds and tokens of batches that wait for each other."""
    num_tokens = 0
    start_s = time.perf_counter()
    for batch in batches:
        for request in batch:
            loop.submit(request)
        while not loop.is_idle:
            num_tokens += loop.step().num_tokens
    return time.perf_counter() - start_s, num_tokens


def main() -> None:
    """Decode a few rounds both ways and print the medians of their ratios."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.continuous")
    parser.add_argument("--gin", default="configs/bench/tiny_qwen3_uneven.gin")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    train = config.load([args.gin], []).train
    prepare_devices(train.mesh)
    parts = build(train)
    params = parts.engine.load_params(parts.learner.export_params())
    parts.engine.warm_up(params, multi_turn=False)
    loop = SampleLoop(parts.engine, params, 0)
    slots, pipeline = train.sampler.slots, train.pipeline
    rates, ratios = [], []
    for number in range(args.rounds):
        first = number * pipeline.groups_per_round
        prompts = [
            parts.source.prompt(first + i) for i in range(pipeline.groups_per_round)
        ]
        requests = [
            request_for(train, prompt, SampleId(prompt.uid, 0, i), train.sampler)
            for prompt in prompts
            for i in range(pipeline.samples_per_group)
        ]
        batches = [requests[i : i + slots] for i in range(0, len(requests), slots)]
        refilled_s, num = decode(loop, [requests])
        waiting_s, num_waiting = decode(loop, batches)
        assert num == num_waiting, (num, num_waiting)
        rates.append((num / refilled_s, num / waiting_s))
        ratios.append(waiting_s / refilled_s)
    refilled, waiting = (
        statistics.median(column) for column in zip(*rates, strict=True)
    )
    print(f"slots refilled: {refilled:,.0f} tokens/s")
    print(f"batches that wait for their longest: {waiting:,.0f} tokens/s")
    print(
        f"ratio {statistics.median(ratios):.2f}, "
        f"from {min(ratios):.2f} to {max(ratios):.2f} over {args.rounds} rounds"
    )


if __name__ == "__main__":
    main()
