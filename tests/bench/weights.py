"""`python -m tests.bench.weights`: weights between two processes, against copying.

A learner on 4 devices publishes about --mb of float32 weights, cut along "fsdp", to a
sampler on 2, cut along "tensor", both processes of Ray on this machine. In every round
each carrier, another one first each time, sends a version to a sampler that waits, and
then one to a sampler that decodes. Before each of the former and behind the last, so in
the same state of the machine, as many bytes are copied twice.

The copies are into shared memory and out of it again, shard by shard out of the
learner's arrays and into the sampler's, in memory that both have used before, on one
thread: what a version takes is told as a multiple of the mean of the copies on either
side of it. For comparison, one block is copied into new shared memory and from there
into a new array.

With --machines 2 each process is on a node of Ray's of its own, so that nothing is in
shared memory that both see; the network between them is this machine's own, or with
--gbit one of network namespaces, which needs root. There "made" is the first carrier,
offered when all of a version has been made.

The bounds are those of the carrier that a run on one machine has by default, or of the
first that is named where that one isn't: 1.5 times the copies, and 5 % of its time for
the longest stop of decoding; between two machines, a share of what Ray takes in turn
with it. Exits 1 where one is missed, or a checksum differs.
Medians of all rounds; their numbers stay in a folder.
"""

import argparse
import contextlib
import json
import logging
import pathlib
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator

import ray
from ray.cluster_utils import Cluster

from jigsaw_jax import settings
from jigsaw_jax.runtime.cluster import carriers
from tests.bench import hosts, quiet
from tests.bench.weights_ends import Learner, Sampler, start, wait

NAMES = {
    1: ["shared", "ray", "transfer", "folder"],
    2: ["line", "made", "ray", "transfer"],
}
COPIES_MAX = 1.5
RAY_MAX = 0.75
STALL_MAX = 0.05


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--machines", type=int, choices=[1, 2], default=1)
    parser.add_argument("--gbit", type=float, help="of the network between two")
    parser.add_argument("--joined", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--carriers", nargs="+")
    parser.add_argument("--threads", type=int, default=0, help="of the receiver")
    parser.add_argument("--encoding", default="exact")
    args = parser.parse_args()
    args.carriers = args.carriers or NAMES[args.machines]
    store_bytes = (4 * args.mb + 200) * 10**6
    if args.gbit and not args.joined:
        return in_hosts(args.gbit, store_bytes)
    warnings.simplefilter("ignore")
    kept = pathlib.Path(tempfile.mkdtemp(prefix="jigsaw-weights-"))
    with (
        nodes(args, store_bytes) as places,
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        quiet.watched(kept / "rounds"),
    ):
        found = run(args, pathlib.Path(folder), places)
    (kept / "rounds.json").write_text(json.dumps(found) + "\n")
    print(f"{found['mb']:.0f} MB, {args.encoding}, medians of {args.rounds} rounds in")
    # Of hosts that this process has not started all would be others'.
    others = "" if args.joined else quiet.told(kept / "rounds")
    print(f"{kept}/rounds.json{others}")
    return report(found)


def in_hosts(gbit: float, store_bytes: int) -> int:
    """The same on hosts of `hosts`, whose network is no faster than this."""
    why = hosts.why_not()
    if why is not None:
        print(why)
        return 1
    log = pathlib.Path(tempfile.mkdtemp(prefix="jigsaw-weights-")) / "hosts.log"
    with hosts.Hosts(2, log, store_bytes) as two:
        two.limit(gbit)
        if not two.wait(120.0):
            print(f"hosts must come together in 120 s, see {log}")
            return 1
        own = [sys.executable, "-m", "tests.bench.weights", *sys.argv[1:], "--joined"]
        return subprocess.run(two.command(own), check=False).returncode


@contextlib.contextmanager
def nodes(args: argparse.Namespace, store_bytes: int) -> Iterator[tuple[str, str]]:
    """Ray; names of the node of each end, where they are two."""
    quietly = {"logging_level": logging.ERROR, "log_to_driver": False}
    cluster, places = None, ("", "")
    if args.joined:
        ray.init(hosts.ADDRESS, **quietly)
        places = (f"node:{hosts.NETWORK}.2", f"node:{hosts.NETWORK}.3")
    elif args.machines == 2:
        places = ("learner", "sampler")
        head, other = (
            {"object_store_memory": store_bytes, "num_cpus": 2, "resources": {name: 1}}
            for name in places
        )
        head["include_dashboard"] = False
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(wait=True, **other)
        ray.init(cluster.address, **quietly)
    else:
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=store_bytes,
            include_dashboard=False,
            **quietly,
        )
    try:
        yield places
    finally:
        ray.shutdown()
        if cluster is not None:
            cluster.shutdown()


def run(
    args: argparse.Namespace, folder: pathlib.Path, places: tuple[str, str]
) -> dict:
    """Every round's numbers."""
    ends = (args.mb, args.carriers, folder, args.encoding)
    learner = start(Learner, *ends, node=places[0])
    sampler = start(Sampler, *ends, args.threads, node=places[1])
    boxes = wait(learner.boxes.remote())

    def copy(path: pathlib.Path, *, by_shards: bool) -> dict:
        put = wait(learner.copy.remote(str(path), by_shards))
        got = wait(sampler.copy.remote(str(path), boxes, by_shards))
        return {key: put[key] + got[key] for key in put}

    def send(name: str, version: int) -> dict:
        put = learner.publish.remote(name, version)
        got = wait(sampler.receive.remote(name, put))
        return {**got, "put": wait(learner.spent.remote())}

    rounds = []
    # Two rounds more, for memory that is touched for the first time.
    for number in range(args.rounds + 2):
        turn = number % len(args.carriers)
        order = args.carriers[turn:] + args.carriers[:turn]
        copies, idle = [copy(folder / "cut", by_shards=True)], {}
        for name in order:
            idle[name] = send(name, 2 * number)
            copies.append(copy(folder / "cut", by_shards=True))
            idle[name]["copies_s"] = statistics.mean(x["s"] for x in copies[-2:])
        wait(sampler.decode.remote(True))
        busy = {name: send(name, 2 * number + 1) for name in order}
        wait(sampler.decode.remote(False))
        new = copy(folder / "new", by_shards=False)
        (folder / "new").unlink()
        rounds.append({"copies": copies, "new": new, "idle": idle, "busy": busy})
    mbytes = sum(size for _, _, size in boxes) / 1e6
    return {
        "mb": mbytes,
        "machines": args.machines,
        "gbit": args.gbit,
        "carriers": args.carriers,
        "rounds": rounds[2:],
    }


def judged(names: list[str], num_machines: int) -> tuple[str, bool]:
    """Whose bounds count, and whether that is the default on so many machines."""
    usual = carriers.resolve(
        settings.Cluster(),
        run_dir=pathlib.Path(),
        samplers=1,
        is_local=num_machines == 1,
    ).carriers[0]
    return (usual, True) if usual in names else (names[0], False)


def report(found: dict) -> int:
    """Print what the rounds say; 1 where a bound is missed."""
    names, num = found["carriers"], found["machines"]
    first, is_usual = judged(names, num)
    rounds = found["rounds"]
    copies = [one for each in rounds for one in each["copies"]]
    print(
        f"copied twice through shared memory: {median(x['s'] for x in copies):.3f} s "
        f"({median(x['cpu_s'] for x in copies):.3f} s of CPU) shard by shard in used "
        f"memory, {median(each['new']['s'] for each in rounds):.3f} s at once into new"
    )
    is_missed = False
    for name in names:
        mark = "" if name != first else " (default)" if is_usual else " (judged)"
        idle = [each["idle"][name] for each in rounds]
        busy = [each["busy"][name] for each in rounds]
        ratio = told(name + mark, found["mb"], idle)
        share = told_stalls(busy)
        is_equal = all(one["is_equal"] for one in [*idle, *busy])
        print(f"{'':18}checksums {'equal' if is_equal else 'DIFFER'}")
        is_missed |= not is_equal
        if name == first:
            is_missed |= share >= STALL_MAX or (num == 1 and ratio >= COPIES_MAX)
    bound = f"under {COPIES_MAX} times the copies"
    if num == 2 and {first, "ray"} <= set(names):
        bound = f"under {RAY_MAX} of the time of Ray"
        ratio = median(
            each["idle"][first]["total_s"] / each["idle"]["ray"]["total_s"]
            for each in rounds
        )
        print(f"{first} takes {ratio:.2f} of the time of Ray")
        is_missed |= ratio >= RAY_MAX
    network = (
        "" if found["gbit"] is None else f", {found['gbit']:g} Gbit/s between them"
    )
    usual = f"the default on {num} of them" if is_usual else "not the default"
    print(
        f"machines: {num}{network}; bounds are those of {first}, {usual}: {bound}, "
        f"stopped under {STALL_MAX:.0%}: {'missed' if is_missed else 'held'}"
    )
    return int(is_missed)


def told(label: str, mbytes: float, idle: list[dict]) -> float:
    """Print how a carrier did beside a sampler that waits; times the copies."""
    total_s = median(one["total_s"] for one in idle)
    ratio = median(one["total_s"] / one["copies_s"] for one in idle)
    ends = [(one["put"], one["got"]) for one in idle]
    cpu_s = median(put["cpu_s"] + got["cpu_s"] for put, got in ends)
    print(
        f"{label:18}{mbytes / total_s:6.0f} MB/s: {total_s:.3f} s, of them publish "
        f"{median(one['put_s'] for one in idle):.3f}, offer's way "
        f"{median(one['offer_s'] for one in idle):.3f}; {ratio:.2f} times the copies; "
        f"CPU {cpu_s:.3f} s, pages touched first "
        f"{median(put['faults'] for put, _ in ends):.0f} and "
        f"{median(got['faults'] for _, got in ends):.0f}"
    )
    return ratio


def told_stalls(busy: list[dict]) -> float:
    """Print how decoding went on meanwhile; the longest stop's share of the time."""
    stalls = [one["stall"] for one in busy]
    share = median(one["stall"]["longest_s"] / one["total_s"] for one in busy)
    total_s = median(one["total_s"] for one in busy)
    print(
        f"{'':18}while decoding {total_s:.3f} s; stopped "
        f"{1e3 * median(stall['longest_s'] for stall in stalls):.1f} ms, {share:.1%}, "
        f"the switch itself {1e3 * median(one['switch_s'] for one in busy):.3f} ms; "
        f"a call {1e3 * median(stall['usual_s'] for stall in stalls):.2f} ms, "
        f"{median(stall['slower'] for stall in stalls):.2f} times that meanwhile"
    )
    return share


def median(values) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    sys.exit(main())
