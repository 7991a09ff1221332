"""Time a simulated round of 100,000 requests on 1,024 sampler workers.

Run `python -m tests.bench.simulate`; the goal is 60 s of one core. Workers fail, some
are slow, rewards queue, and contexts make steps dearer.
"""

import argparse
import pathlib
import time

from jigsaw_jax import config
from jigsaw_jax.simulation import outcome, overrides

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = {
    "Pipeline.samples_per_group": 8,
    "Pipeline.groups_per_round": 12_500,
    "Pipeline.groups_per_update": 2_500,
    "Fleet.workers": 1_024,
    "Sampler.slots": 64,
    "Sampler.new_tokens_max": 8_192,
    "Sampler.steps_per_call": 8,
    "Learner.row_tokens": 8_224,
    "Workload.length_mean": 1_500.0,
    "Workload.length_sigma": 0.8,
    "Workload.reward_s": 0.5,
    "Workload.reward_sigma": 1.0,
    "Reward.processes": 512,
    # What so many groups are at their longest.
    "Cluster.queue_bytes_max": 10**11,
    "Costs.decode_s": 0.012,
    "Costs.decode_token_s": 2e-8,
    "Costs.prefill_token_s": 2e-5,
    "Costs.train_token_s": 5e-7,
    "Costs.publish_s": 2.0,
    "Fleet.straggler_share": 0.02,
    "Fleet.failure_every_s": 40_000.0,
}
POLICIES = {
    "stream, fifo": {"Pipeline.admission": "fifo"},
    "stream, priority": {"Pipeline.frontier_groups": 256},
    "stream, adaptive": {"Pipeline.admission": "frontier_adaptive"},
    "sync": {"Pipeline.mode": "sync", "Pipeline.admission": "fifo"},
    # Thousands of groups are open, up to twice an update's.
    "async": {
        "Pipeline.mode": "async",
        "Pipeline.groups_per_update": 12_500,
        "Pipeline.staleness_max": 1,
    },
    "async, adaptive": {
        "Pipeline.mode": "async",
        "Pipeline.admission": "frontier_adaptive",
        "Pipeline.groups_per_update": 12_500,
        "Pipeline.staleness_max": 1,
    },
}


def main() -> None:
    """Print the time and the numbers of each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=SETTINGS["Fleet.workers"])
    parser.add_argument("--policy", choices=POLICIES, action="append")
    args = parser.parse_args()
    train = config.load([str(ROOT / "configs/bench/tiny_qwen3.gin")]).train
    train = overrides.apply(train, {**SETTINGS, "Fleet.workers": args.workers})
    for policy in args.policy or POLICIES:
        values = POLICIES[policy]
        start_s = time.process_time()
        numbers, trace = outcome.simulate(overrides.apply(train, values), 0)
        core_s = time.process_time() - start_s
        groups = [g for window in trace.windows for g in window.sampled.values()]
        requests = sum(map(len, groups))
        print(
            f"{policy}: {requests:,} completions on {args.workers} workers in "
            f"{core_s:.1f} s of one core; a round of {numbers.round_s:,.0f} s, "
            f"{numbers.efficiency:.1%} of the bound"
        )


if __name__ == "__main__":
    main()
