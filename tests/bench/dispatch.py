"""Fit the table's `Costs.dispatch_s` to what is published of CGP+FGD.

Run `python -m tests.bench.dispatch`. Unlike scripts/fit_rolloutpipe.py this one looks
at the column that the table predicts: at LSAT-AR's two times, and at the ends of the
band at R = 96, which are those of the quickest and the slowest task. A call to train is
made once an update, and a trainer that never starves ends later by as much; so with
given slots the least-squares cost follows from the times without it.
"""

import argparse
import math
import pathlib

from jigsaw_jax import config
from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import outcome, overrides

TABLE = str(pathlib.Path(__file__).parents[2] / "configs/sim/rolloutpipe_table.gin")
# Scenario to published seconds and updates.
PUBLISHED = {
    "LSAT-AR R=32": (251.0, 16),
    "LSAT-AR R=96": (647.0, 48),
    "Sci-XW R=96": (641.0, 48),
    "OlyPhys R=96": (712.0, 48),
}


def late_s(train: Train, slots: int) -> list[float]:
    """Published less simulated seconds, without the cost of a call."""
    simulation = train.simulation
    found = []
    for name, (seconds, _) in PUBLISHED.items():
        values = {
            **simulation.scenarios[name],
            **simulation.policies["CGP+FGD"],
            "Sampler.slots": slots,
            "Costs.dispatch_s": 0.0,
        }
        run = overrides.apply(train, values)
        found.append(seconds - outcome.spread(run).mean.train_end_s)
    return found


def least_squares(late: list[float]) -> tuple[float, float]:
    """(seconds a call, root of the mean square that it leaves)."""
    updates = [num for _, num in PUBLISHED.values()]
    pairs = list(zip(late, updates, strict=True))
    call_s = sum(late * num for late, num in pairs) / sum(n * n for n in updates)
    squares = [(late - num * call_s) ** 2 for late, num in pairs]
    return call_s, math.sqrt(sum(squares) / len(squares))


def main() -> None:
    """Print the cost of a call for each number of slots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[48, 56, 64, 72, 80])
    args = parser.parse_args()
    train = config.load([TABLE]).train
    for slots in args.slots:
        late = late_s(train, slots)
        call_s, left_s = least_squares(late)
        pair_s = (late[1] - late[0]) / 32
        print(
            f"{slots} slots: {call_s:.3f} s a call, {left_s:.1f} s are left; "
            f"LSAT-AR's two times alone say {pair_s:.3f} s"
        )


if __name__ == "__main__":
    main()
