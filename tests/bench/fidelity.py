"""`python -m tests.bench.fidelity`: does one real run's cost model predict others?

Trains configs/bench/overlap.gin on `local:2`, a core each, once to fit costs to, and
then with R, U, F, modes and admissions that the fit has not seen. Each of those is
simulated with the first run's costs and completions, and its rollout-to-train-end is
compared, round by round. Prints the medians and the median error; exits 1 where one is
above 10 %. The runs stay in the folder that it names, and `--check FOLDER` compares
them again. docs/simulator.md says what the seen run shows, and why runs take turns.
"""

import argparse
import collections
import dataclasses
import pathlib
import statistics
import sys
import tempfile

from jigsaw_jax import config
from jigsaw_jax.simulation import fit, outcome, overrides, recorded
from tests.bench import overlap, quiet

ERROR_MAX = 0.10
SEEN = "seen"


@dataclasses.dataclass(frozen=True)
class Kind:
    """What tells a run from the others.

    mode: of the pipeline.
    admission: of it.
    size: R.
    per_update: U.
    width: F.
    saves: whether each update is followed by a checkpoint.
    rounds: for each that was asked for.
    """

    mode: str
    admission: str
    size: int
    per_update: int
    width: int
    saves: bool = False
    rounds: float = 1.0


RUNS = {
    # Groups gather behind its checkpoints, so it has hand-offs of several too. With a
    # turn more than the others it meets every prompt of theirs.
    SEEN: Kind("stream", "frontier_priority", 20, 10, 2, saves=True),
    "sync": Kind("sync", "fifo", 20, 20, 2),
    "sync_small": Kind("sync", "fifo", 8, 4, 2, rounds=4 / 3),
    "fifo_split": Kind("stream", "fifo", 28, 4, 2),
    "strict_1": Kind("stream", "frontier_strict", 20, 10, 1),
    "strict_2": Kind("stream", "frontier_strict", 12, 12, 2, rounds=4 / 3),
}


def order(turns: int) -> list[str]:
    """Runs in the order of their processes; the seen one has one more than the others.

    Every other turn goes backwards, and the seen run begins, ends and divides them: a
    machine that becomes slower all the time does so for each of them alike.
    """
    others = [name for name in RUNS if name != SEEN]
    found = [SEEN]
    for turn in range(turns):
        found += [*(others if turn % 2 == 0 else reversed(others)), SEEN]
    return found


def sets(name: str, rounds: int) -> list[str]:
    """Bindings of a run that has so many rounds when it ends, by its kind's measure."""
    kind = RUNS[name]
    rounds = round(rounds * kind.rounds)
    every = 1 if kind.saves else 1000
    return [
        f'Pipeline.mode = "{kind.mode}"',
        f'Pipeline.admission = "{kind.admission}"',
        f"Pipeline.groups_per_round = {kind.size}",
        f"Pipeline.groups_per_update = {kind.per_update}",
        f"Pipeline.frontier_groups = {kind.width}",
        f"Train.updates = {rounds * kind.size // kind.per_update}",
        f"Store.checkpoint_every = {every}",
    ]


def predicted(run_dir: pathlib.Path, seen: pathlib.Path) -> dict[int, dict[str, float]]:
    """What each round of a run takes by the costs of another."""
    train = config.load([str(run_dir / "config.gin")]).train
    pipeline = train.pipeline
    rounds = train.updates * pipeline.groups_per_update // pipeline.groups_per_round
    asked = overrides.apply(
        fit.fitted(train, str(seen)), {"Simulation.rounds": max(rounds, 1)}
    )
    _, trace = outcome.simulate(asked, train.seed, keeps_events=True)
    return recorded.rounds(trace.events)


def compare(
    run_dir: pathlib.Path, seen: pathlib.Path
) -> tuple[dict[str, float], dict[str, float], float]:
    """Medians of what rounds took and should have, and the median of their errors.

    A round and its prediction have the same prompts, so they are compared in pairs.
    """
    real = recorded.rounds(recorded.read(run_dir))
    guess = predicted(run_dir, seen)
    both = sorted(set(real) & set(guess))
    errors = [guess[v]["train_end_s"] / real[v]["train_end_s"] - 1 for v in both]
    names = real[both[0]]
    told = [
        {name: statistics.median(rounds[v][name] for v in both) for name in names}
        for rounds in (real, guess)
    ]
    return told[0], told[1], statistics.median(errors)


def check(folder: pathlib.Path) -> int:
    """Compare every run of a folder with its prediction."""
    seen = folder / SEEN
    train = config.load([str(seen / "config.gin")]).train
    print(fit.told(*recorded.costs(fit.fitted(train, str(seen)))))
    print(f"{'':12}{'measured s':>12}{'predicted s':>12}{'error':>9}   waits")
    worst = 0.0
    for name in RUNS:
        real, guess, error = compare(folder / name, seen)
        if name != SEEN:
            worst = max(worst, abs(error))
        print(
            f"{name:12}{real['train_end_s']:12.3f}{guess['train_end_s']:12.3f}"
            f"{error:9.1%}   {real['wait_ratio']:.1%} | {guess['wait_ratio']:.1%}"
            f"{quiet.told(folder / name)}"
        )
    print(f"largest error of what was not seen: {worst:.1%}, at most {ERROR_MAX:.0%}")
    print(f"left in {folder}; again: python -m tests.bench.fidelity --check {folder}")
    return 0 if worst <= ERROR_MAX else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--turns", type=int, default=3, help="processes of each unseen run"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of each process")
    parser.add_argument("--shape", type=int, nargs=2, default=[5, 2])
    parser.add_argument("--cores", type=int, nargs=2, default=[0, 1])
    parser.add_argument("--gin", default="configs/bench/overlap.gin")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--folder", help="where it leaves everything")
    parser.add_argument("--check", metavar="FOLDER", help="compare earlier runs again")
    args = parser.parse_args()
    if args.check:
        return check(pathlib.Path(args.check).absolute())
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="fidelity-"))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    shape = overlap.shape_sets((args.shape[0], args.shape[1]))
    turns = collections.Counter()
    for name in order(args.turns):
        turns[name] += 1
        # From its second turn on a run is resumed.
        own = [*shape, *sets(name, turns[name] * args.rounds)]
        with quiet.watched(folder / name):
            overlap.run(args, folder / name, own)
        print(f"{name}, turn {turns[name]} done", flush=True)
    return check(folder)


if __name__ == "__main__":
    sys.exit(main())
