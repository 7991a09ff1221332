"""`python -m tests.bench.fidelity`: does one real run's cost model predict others?

Trains configs/bench/overlap.gin on `local:2`, a core each, once to fit costs to, and
then with R, U, F, modes and admissions that the fit has not seen. Each of those is
simulated with the first run's costs and completions, and its rollout-to-train-end is
compared. Prints both and the error; exits 1 where one is above 10 %. The runs stay in
the folder that it names, and `--check FOLDER` compares them again.
"""

import argparse
import pathlib
import sys
import tempfile

from jigsaw_jax import config
from jigsaw_jax.simulation import fit, outcome, overrides, recorded
from tests.bench import overlap

ERROR_MAX = 0.10
SEEN = "seen"
# Name to mode, admission, R, U and F.
RUNS = {
    SEEN: ("stream", "frontier_priority", 20, 20, 2),
    "sync": ("sync", "fifo", 20, 20, 2),
    "sync_small": ("sync", "fifo", 8, 4, 2),
    "fifo_split": ("stream", "fifo", 28, 4, 2),
    "strict_1": ("stream", "frontier_strict", 20, 10, 1),
    "strict_2": ("stream", "frontier_strict", 12, 12, 2),
}


def sets(name: str, rounds: int) -> list[str]:
    """Bindings of a run."""
    mode, admission, size, per_update, width = RUNS[name]
    return [
        f'Pipeline.mode = "{mode}"',
        f'Pipeline.admission = "{admission}"',
        f"Pipeline.groups_per_round = {size}",
        f"Pipeline.groups_per_update = {per_update}",
        f"Pipeline.frontier_groups = {width}",
        f"Train.updates = {rounds * size // per_update}",
    ]


def predicted(run_dir: pathlib.Path, seen: pathlib.Path) -> dict[str, float]:
    """What a run takes by the costs of another."""
    train = config.load([str(run_dir / "config.gin")]).train
    pipeline = train.pipeline
    rounds = train.updates * pipeline.groups_per_update // pipeline.groups_per_round
    asked = overrides.apply(
        fit.fitted(train, str(seen)), {"Simulation.rounds": max(rounds, 1)}
    )
    _, trace = outcome.simulate(asked, train.seed, keeps_events=True)
    return recorded.measured(trace.events)


def check(folder: pathlib.Path) -> int:
    """Compare every run of a folder with its prediction."""
    seen = folder / SEEN
    train = config.load([str(seen / "config.gin")]).train
    print(fit.told(*recorded.costs(fit.fitted(train, str(seen)))))
    print(f"{'':12}{'measured s':>12}{'predicted s':>12}{'error':>9}   waits")
    worst = 0.0
    for name in RUNS:
        real = recorded.measured(recorded.read(folder / name))
        guess = predicted(folder / name, seen)
        error = guess["train_end_s"] / real["train_end_s"] - 1
        if name != SEEN:
            worst = max(worst, abs(error))
        print(
            f"{name:12}{real['train_end_s']:12.3f}{guess['train_end_s']:12.3f}"
            f"{error:9.1%}   {real['wait_ratio']:.1%} | {guess['wait_ratio']:.1%}"
        )
    print(f"largest error of what was not seen: {worst:.1%}, at most {ERROR_MAX:.0%}")
    print(f"left in {folder}; again: python -m tests.bench.fidelity --check {folder}")
    return 0 if worst <= ERROR_MAX else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3, help="of each run")
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
    for name in RUNS:
        overlap.run(args, folder / name, [*shape, *sets(name, args.rounds)])
        print(f"{name} done", flush=True)
    return check(folder)


if __name__ == "__main__":
    sys.exit(main())
