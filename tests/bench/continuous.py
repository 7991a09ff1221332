"""Print what refilling free slots saves over batches that wait for their longest.

    python -m tests.bench.continuous            # --cpu on a busy machine

The requests of some rounds of `bench/tiny_qwen3_uneven.gin` (128 completions each,
lengths geometric with mean 64, cut at 256) go through the same engine and its 32 slots
in three ways, which take turns:

- waiting: in batches of 32, each begun when the last has ended, in all 32 slots;
- a round: its 128 queued at once, so that the slots run empty at its end;
- a stream: rounds queued behind each other, timed for as long as any request waits,
  which is what `stream` and `async` runs see between their first and last round.

Beside each ratio stands what the lengths allow, counted in steps of all slots: a round
of four batches ends with slots that have nothing to do, so it can't reach a stream's.
With `Sampler.slots_draining` those cost less, and a round can beat its count. Exit 1 if
a stream is less than 3 times as fast as batches that wait. Use a quiet machine.
"""

import argparse
import dataclasses
import heapq
import statistics
import sys
import time
from collections.abc import Callable

from jigsaw_jax import config
from jigsaw_jax.records import SampleId
from jigsaw_jax.runtime.build import Parts, build
from jigsaw_jax.runtime.devices import prepare_devices
from jigsaw_jax.runtime.sampler import request_for
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest
from jigsaw_jax.sample.warm_up import warm_up
from jigsaw_jax.settings import Train

BOUND = 3.0


class Ways:
    """One engine, decoding as it is told.

    Args:
      engine: whose slots.
      loop: over it.
      clock: wall or CPU time, in seconds.
    """

    def __init__(
        self, engine: Engine, loop: SampleLoop, clock: Callable[[], float]
    ) -> None:
        self._engine, self._loop, self._clock = engine, loop, clock
        self._sampler = engine.sampler

    def rounds(
        self, batches: list[list[SampleRequest]], *, is_drained: bool
    ) -> tuple[float, list[int]]:
        """Seconds and lengths of batches that wait for each other."""
        fewer = self._sampler.slots_draining if is_drained else ()
        self._engine.sampler = dataclasses.replace(self._sampler, slots_draining=fewer)
        lengths, start_s = [], self._clock()
        for batch in batches:
            ended: dict[SampleId, int] = {}
            for request in batch:
                self._loop.submit(request)
            while not self._loop.is_idle:
                for sample in self._loop.step().finished:
                    ended[sample.id] = sample.num_sampled
            lengths += [ended[request.id] for request in batch]
        return self._clock() - start_s, lengths

    def stream(self, requests: list[SampleRequest]) -> float:
        """Tokens a second while some of the requests wait for a slot."""
        num_tokens, num_waiting, start_s = 0, len(requests), self._clock()
        for request in requests:
            self._loop.submit(request)
        while num_waiting:
            report = self._loop.step()
            num_tokens += report.num_tokens
            num_waiting -= len(report.started)
        seconds = self._clock() - start_s
        self._loop.clear()
        return num_tokens / seconds


def refilled_steps(lengths: list[int], slots: int) -> int:
    """Steps in which refilled slots decode these completions, in order."""
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def waiting_steps(lengths: list[int], slots: int) -> int:
    """Steps of batches that wait for their longest."""
    return sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))


def requests_of(train: Train, parts: Parts, number: int) -> list[SampleRequest]:
    """The requests of one round."""
    pipeline = train.pipeline
    first = number * pipeline.groups_per_round
    prompts = [parts.source.prompt(first + i) for i in range(pipeline.groups_per_round)]
    return [
        request_for(train, prompt, SampleId(prompt.uid, 0, i), train.sampler)
        for prompt in prompts
        for i in range(pipeline.samples_per_group)
    ]


def main() -> None:
    """Decode a few rounds in all ways and print the medians of their ratios."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.continuous")
    parser.add_argument("--gin", default="configs/bench/tiny_qwen3_uneven.gin")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="CPU time, not wall time")
    args = parser.parse_args()
    train = config.load([args.gin], []).train
    prepare_devices(train.mesh)
    parts = build(train)
    params = parts.engine.load_params(parts.learner.export_params())
    warm_up(parts.engine, params, multi_turn=False)
    clock = time.process_time if args.cpu else time.perf_counter
    ways = Ways(parts.engine, SampleLoop(parts.engine, params, 0), clock)
    slots, rates, allowed = train.sampler.slots, [], []
    for number in range(args.rounds):
        requests = requests_of(train, parts, number)
        more = requests + requests_of(train, parts, args.rounds + number)
        batches = [requests[i : i + slots] for i in range(0, len(requests), slots)]
        round_s, lengths = ways.rounds([requests], is_drained=True)
        waiting_s, again = ways.rounds(batches, is_drained=False)
        assert lengths == again, "a sample must not depend on its batch"
        num, steps = sum(lengths), waiting_steps(lengths, slots)
        rates.append((num / waiting_s, num / round_s, ways.stream(more)))
        allowed.append((1.0, steps / refilled_steps(lengths, slots)))
        allowed[-1] += (steps / (num / slots),)
    print(f"{'CPU' if args.cpu else 'wall'} time, medians of {args.rounds} rounds")
    found = []
    for i, name in enumerate(("waiting", "round", "stream")):
        found.append(statistics.median(row[i] / row[0] for row in rates))
        print(
            f"{name}: {statistics.median(row[i] for row in rates):,.0f} tokens/s, "
            f"{found[-1]:.2f} times waiting; lengths allow "
            f"{statistics.median(row[i] for row in allowed):.2f}"
        )
    if found[-1] < BOUND:
        sys.exit(f"a stream must be {BOUND} times as fast, got {found[-1]:.2f}")


if __name__ == "__main__":
    main()
