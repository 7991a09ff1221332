"""`python -m tests.bench.weights`: weights between two processes, against copying.

A learner on 4 devices publishes about --mb of float32 weights, cut along "fsdp", to a
sampler on 2, cut along "tensor", both processes of Ray on this machine. Every round
copies as many bytes into shared memory and out of it again, and then sends a version by
each carrier, first to a sampler that waits and then to one that decodes.

The copies are into shared memory and out of it again, shard by shard out of the
learner's arrays and into the sampler's, in memory that both have used before, on one
thread. For comparison, one block is copied into new shared memory and from there into a
new array.
Exits 1 when a checksum differs, or the first carrier takes 1.5 times the copies or
stops decoding for 5 % of its time. Medians of all rounds.
"""

import argparse
import logging
import pathlib
import statistics
import sys
import tempfile
import warnings

import ray

from tests.bench.weights_ends import Learner, Sampler, start, wait

NAMES = ["shared", "ray", "transfer", "folder"]
COPIES_MAX = 1.5
STALL_MAX = 0.05


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--carriers", nargs="+", default=NAMES)
    parser.add_argument("--threads", type=int, default=0, help="of the receiver")
    parser.add_argument("--encoding", default="exact")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=(4 * args.mb + 200) * 10**6,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            return run(args, pathlib.Path(folder))
    finally:
        ray.shutdown()


def run(args, folder: pathlib.Path) -> int:
    ends = (args.mb, args.carriers, folder, args.encoding)
    learner, sampler = start(Learner, *ends), start(Sampler, *ends, args.threads)
    boxes = wait(learner.boxes.remote())
    copies: dict[str, list[float]] = {"cut": [], "new": []}
    sent = {name: [] for name in args.carriers}
    decoded = {name: [] for name in args.carriers}
    # Two rounds more, for memory that is touched for the first time.
    for number in range(args.rounds + 2):
        path = folder / f"new{number}"
        times = {
            "cut": copy(learner, sampler, folder / "cut", boxes, by_shards=True),
            "new": copy(learner, sampler, path, boxes, by_shards=False),
        }
        path.unlink()
        idle = {name: send(learner, sampler, name, 2 * number) for name in sent}
        wait(sampler.decode.remote(True))
        busy = {name: send(learner, sampler, name, 2 * number + 1) for name in sent}
        wait(sampler.decode.remote(False))
        if number < 2:
            continue
        for rule, seconds in times.items():
            copies[rule].append(seconds)
        for name in sent:
            sent[name].append(idle[name])
            decoded[name].append(busy[name])
    mbytes = sum(size for _, _, size in boxes) / 1e6
    print(f"{mbytes:.0f} MB, {args.encoding}, medians of {args.rounds} rounds")
    return report(args.carriers, mbytes, copies, sent, decoded)


def copy(learner, sampler, path, boxes, *, by_shards: bool) -> float:
    """Seconds to copy all bytes into shared memory and out of it."""
    put_s = wait(learner.copy.remote(str(path), by_shards))
    return put_s + wait(sampler.copy.remote(str(path), boxes, by_shards))


def send(learner, sampler, name: str, version: int) -> dict:
    return wait(sampler.receive.remote(name, learner.publish.remote(name, version)))


def report(names, mbytes: float, copies, sent, decoded) -> int:
    print(
        f"copied twice through shared memory: {median(copies['cut']):.3f} s shard by "
        f"shard in used memory, {median(copies['new']):.3f} s at once into new memory"
    )
    is_missed = False
    for name in names:
        total_s = [one["total_s"] for one in sent[name]]
        ratio, to_new = (ratios(total_s, copies[rule]) for rule in ("cut", "new"))
        stalls = [one["stall"] for one in decoded[name]]
        busy_s = [one["total_s"] for one in decoded[name]]
        share = ratios([stall["longest_s"] for stall in stalls], busy_s)
        is_equal = all(one["is_equal"] for one in [*sent[name], *decoded[name]])
        print(
            f"{name:9}{mbytes / median(total_s):6.0f} MB/s: {median(total_s):.3f} s, "
            f"of them put {median(one['put_s'] for one in sent[name]):.3f}, offer's "
            f"way {median(one['offer_s'] for one in sent[name]):.3f}; "
            f"{ratio:.2f} times the copies ({to_new:.2f} of those into new memory)"
        )
        print(
            f"{'':9}while decoding {median(busy_s):.3f} s; stopped "
            f"{1e3 * median(stall['longest_s'] for stall in stalls):.1f} ms, "
            f"{share:.1%}, the switch itself "
            f"{1e3 * median(one['switch_s'] for one in decoded[name]):.3f} ms; a call "
            f"{1e3 * median(stall['usual_s'] for stall in stalls):.2f} ms, "
            f"{median(stall['slower'] for stall in stalls):.2f} times that meanwhile"
        )
        print(f"{'':9}checksums {'equal' if is_equal else 'DIFFER'}")
        is_missed |= not is_equal
        if name == names[0]:
            is_missed |= ratio >= COPIES_MAX or share >= STALL_MAX
    print(
        f"bounds: {names[0]} under {COPIES_MAX} times the copies, stopped under "
        f"{STALL_MAX:.0%}: {'missed' if is_missed else 'held'}"
    )
    return int(is_missed)


def median(values) -> float:
    return statistics.median(values)


def ratios(ones, others) -> float:
    return median(one / other for one, other in zip(ones, others, strict=True))


if __name__ == "__main__":
    sys.exit(main())
