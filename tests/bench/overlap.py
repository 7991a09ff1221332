"""`python -m tests.bench.overlap`: what streaming groups saves, on two pinned cores.

Trains configs/bench/overlap.gin on `local:2`, sampler and learner each pinned to a
core, in three arms, one after the other, --blocks times: `sync`, CGP (whole groups
stream to the learner, first come first served) and CGP+FGD (and the first groups enter
first). Before, short runs choose the sampler's shape with which both stages take about
as long. Behind, one run takes several updates a round.

Prints the paper's numbers as medians over all rounds, what they save against sync, and
whether the updates are equal: with U = R those of every arm, and with U < R those of a
serial replay, in one process, of the groups in the order that was recorded. Exits 1
where a bound is missed. Everything is computed from what stays in the folder that it
names, run directories and all, so `--check FOLDER` says it again.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

from tests.bench import overlap_figures as figures
from tests.bench import quiet
from tests.bench.overlap_figures import ARMS, SYNC

ROOT = pathlib.Path(__file__).parents[2]
# The sampler's slots and steps a device call, from the slowest to the quickest.
SHAPES = (
    *((2, 1), (3, 1), (4, 1), (5, 1), (4, 2), (5, 2), (6, 2), (6, 4), (8, 4), (10, 4)),
    *((12, 4), (12, 8), (16, 8), (20, 8), (24, 8), (32, 8)),
)
FIRST = (5, 2)
# Of the sampler's time that the learner may take: it sets the pace, just.
BALANCE = (1.0, 1.15)
# Groups of the short round by which a shape is chosen.
SHORT = 16
# Updates of a round in the run that is replayed; the paper has two groups an update.
SPLIT = 2


def command(args: argparse.Namespace, run_dir: pathlib.Path, sets: list[str]) -> list:
    cores = f"Cluster.cores = ({args.cores[0]}, {args.cores[1]})"
    bindings = [cores, *args.set, *sets]
    flags = [part for binding in bindings for part in ("--set", binding)]
    flags += ["--run_dir", str(run_dir), "--cluster", "local:2"]
    return [sys.executable, "-m", "jigsaw_jax.main", "--gin", args.gin, *flags]


def run(args: argparse.Namespace, run_dir: pathlib.Path, sets: list[str]) -> None:
    """One run to its end; what its workers were pinned to is left beside it."""
    log = run_dir.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(args, run_dir, sets), cwd=ROOT, stdout=out, stderr=out
        )
        seen: dict[str, list[str]] = {}
        while process.poll() is None:
            if not seen:
                seen = pinned(run_dir)
            threading.Event().wait(0.5)
    if process.returncode:
        raise SystemExit(f"exit {process.returncode}:\n{log.read_text()[-3000:]}")
    (run_dir / "cores.json").write_text(json.dumps(seen) + "\n")


def pinned(run_dir: pathlib.Path) -> dict[str, list[str]]:
    """Cores on which the threads of each worker may be, once all have joined."""
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    # The last line may be half written.
    whole = [line for line in lines if '"track":"worker/' in line and line[-1] == "}"]
    events = [json.loads(line) for line in whole]
    if not any(event["name"] == "joined" for event in events):
        return {}
    found = {}
    for worker, pid in {e["track"]: e["pid"] for e in events if e["pid"]}.items():
        own: set[str] = set()
        for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):
                # It may have ended since.
                lines = thread.read_text().splitlines()
                own |= {x.split()[1] for x in lines if x.startswith("Cpus_allowed_l")}
        found[worker.removeprefix("worker/")] = sorted(own)
    return found


def shape_sets(shape: tuple[int, int]) -> list[str]:
    """Bindings of a sampler's shape."""
    return [f"Sampler.slots = {shape[0]}", f"Sampler.steps_per_call = {shape[1]}"]


def balance(args: argparse.Namespace, folder: pathlib.Path) -> tuple[int, int]:
    """The shape with which the learner takes as long as the sampler, or a bit longer.

    Judged in the arm where both work at once, since each then slows the other down.
    """
    short = [f"Pipeline.groups_per_{part} = {SHORT}" for part in ("round", "update")]
    short.append("Train.updates = 1")
    middle = sum(BALANCE) / 2
    low, high, at = 0, len(SHAPES) - 1, SHAPES.index(FIRST)
    tried: dict[tuple[int, int], float] = {}
    while low <= high:
        shape = SHAPES[at]
        path = folder / f"balance-{shape[0]}x{shape[1]}"
        run(args, path, [*short, *figures.sets("CGP"), *shape_sets(shape)])
        ratio = tried[shape] = figures.balance(path)
        print(
            f"{shape[0]} slots, {shape[1]} steps a call: the learner takes {ratio:.2f} "
            "of the sampler's time",
            flush=True,
        )
        if BALANCE[0] <= ratio <= BALANCE[1]:
            break
        if ratio > middle:
            high = at - 1
        else:
            low = at + 1
        # A shape is about an eighth quicker than the one before it.
        jump = round(math.log(ratio / middle) / math.log(1.13)) or 1
        at = min(max(at - jump, low), high)
    return min(tried, key=lambda shape: abs(math.log(tried[shape] / middle)))


def measure(args: argparse.Namespace, folder: pathlib.Path) -> None:
    shape = tuple(args.shape) if args.shape else balance(args, folder)
    fixed = shape_sets(shape)
    several = [f"Train.updates = {args.updates}"]
    if args.updates > 1:
        # The weights behind the first update are compared; the last's are always saved.
        several += ["Store.checkpoint_every = 1", "Store.checkpoints_kept = 1000"]
    for block in range(args.blocks):
        for arm in ARMS:
            path = folder / f"{block}-{arm}"
            with quiet.watched(path):
                run(args, path, [*fixed, *several, *figures.sets(arm)])
            told = [f"{one['train_end_s']:.2f}" for one in figures.rounds(path)]
            said = f"{path.name}: to the last gradient {', '.join(told)} s"
            print(said + quiet.told(path), flush=True)
    split = [f"Pipeline.groups_per_update = {SPLIT}", "Store.rollouts_every = 1"]
    size = figures.groups_per_round(folder / f"0-{SYNC}")
    last = f"Train.updates = {size // SPLIT}"
    run(args, folder / "split", [*fixed, *figures.sets("CGP+FGD"), *split, last])


def check(folder: pathlib.Path) -> int:
    """Print all that the runs in a folder show; 1 where a bound is missed."""
    found = {arm: figures.of_arm(folder, arm) for arm in ARMS}
    print(figures.table(found))
    misses = figures.saved(found)
    misses += figures.apart(folder)
    misses += figures.equal_samples(folder)
    # In a process of its own, on a core, as the workers were.
    argv = [sys.executable, "-m", "tests.bench.overlap_replay", str(folder)]
    replayed = subprocess.run(argv, cwd=ROOT, check=False)
    misses += ["equal updates"] if replayed.returncode else []
    print(f"left in {folder}; again: python -m tests.bench.overlap --check {folder}")
    print(f"missed: {', '.join(misses)}" if misses else "all bounds met")
    return 1 if misses else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=3, help="runs of each arm")
    parser.add_argument("--updates", type=int, default=1, help="rounds of each run")
    parser.add_argument(
        "--shape",
        type=int,
        nargs=2,
        metavar=("SLOTS", "STEPS"),
        help="of the sampler; default: that which balances both stages",
    )
    parser.add_argument("--cores", type=int, nargs=2, default=[0, 1])
    parser.add_argument("--gin", default="configs/bench/overlap.gin")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--folder", help="where it leaves everything")
    parser.add_argument("--check", metavar="FOLDER", help="judge an earlier one again")
    args = parser.parse_args()
    if args.check:
        return check(pathlib.Path(args.check).absolute())
    if not set(args.cores) <= os.sched_getaffinity(0):
        raise SystemExit(f"--cores must be two that are here, got {args.cores}")
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="overlap-"))
    folder.mkdir(parents=True, exist_ok=True)
    measure(args, folder.absolute())
    return check(folder.absolute())


if __name__ == "__main__":
    sys.exit(main())
