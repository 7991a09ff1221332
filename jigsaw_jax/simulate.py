"""`python -m jigsaw_jax.simulate --gin FILE`: what would a run take?"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from jigsaw_jax import config
from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import (
    compare,
    fit,
    outcome,
    overrides,
    recommend,
    recorded,
    replay,
    report,
    table,
)
from jigsaw_jax.simulation.outcome import Spread
from jigsaw_jax.simulation.recorded import CostError
from jigsaw_jax.simulation.shell import StuckError
from jigsaw_jax.store.files import StoreError

# What is compared where the file names no policies.
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "sync": {"Pipeline.mode": "sync", "Pipeline.admission": "fifo"},
    "stream, fifo": {"Pipeline.mode": "stream", "Pipeline.admission": "fifo"},
    "stream, priority": {
        "Pipeline.mode": "stream",
        "Pipeline.admission": "frontier_priority",
    },
    "stream, adaptive": {
        "Pipeline.mode": "stream",
        "Pipeline.admission": "frontier_adaptive",
        "Pipeline.frontier_groups": 1,
    },
}


def main(argv: list[str] | None = None) -> int:
    """Simulate a configuration's policies, a recorded run, or splits of chips.

    Args:
      argv: arguments; None takes the process's.

    Returns:
      Exit code: 0, 1 where a number is out of its published bounds or a run gets
      stuck, 2 where the configuration is refused.
    """
    args = _parser().parse_args(argv)
    console = Console(width=args.width)
    try:
        train = config.load(args.gin, args.set).train
        if args.fit is not None:
            train = fit.fitted(train, args.fit)
            console.print(fit.told(*recorded.costs(train)), highlight=False)
        if args.recommend:
            recommend.show(recommend.recommend(train), console)
            return 0
        if args.replay is not None:
            table.replayed(replay.replay(train, args.replay), console)
            return 0
        return _simulate(train, args, console)
    except (config.ConfigError, CostError, StoreError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except StuckError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _simulate(train: Train, args: argparse.Namespace, console: Console) -> int:
    simulation = train.simulation
    compare.check_names(simulation)
    if args.json is not None and not pathlib.Path(args.json).parent.is_dir():
        raise ValueError(f"--json must be in a directory that exists, got {args.json}")
    scenarios = simulation.scenarios or {"": {}}
    combinations = overrides.combinations(overrides.parse_sweep(args.sweep))
    policies = simulation.policies or _policies(combinations)
    # All are made before the first is run: a refusal should cost no minutes.
    runs = {
        _title(scenario, choice): {
            policy: overrides.apply(
                overrides.apply(train, {**given, **choice}), {**values, **choice}
            )
            for policy, values in policies.items()
        }
        for scenario, given in scenarios.items()
        for choice in combinations
    }
    found = {
        title: {policy: outcome.spread(run) for policy, run in of.items()}
        for title, of in runs.items()
    }
    name = pathlib.Path(args.gin[-1]).stem
    is_met = _show(train, found, name, console)
    if args.report is not None:
        _report(runs, pathlib.Path(args.report), console)
    if args.json is not None:
        text = json.dumps(_plain(found), indent=1)
        pathlib.Path(args.json).write_text(text + "\n")
    return 0 if is_met else 1


def _policies(combinations: list[dict[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """The standard ones, unless the sweep chooses what tells them apart."""
    swept = {overrides.SHORT.get(name, name) for name in combinations[0]}
    if swept & {"Pipeline.mode", "Pipeline.admission"}:
        return {"run": {}}
    return POLICIES


def _show(
    train: Train, found: dict[str, dict[str, Spread]], name: str, console: Console
) -> bool:
    simulation = train.simulation
    if not simulation.published:
        for title, of in found.items():
            table.policies(title or name, of, console)
        return True
    ours = {title: _numbers(of) for title, of in found.items()}
    checks = [
        check
        for title, numbers in ours.items()
        for check in compare.checks(simulation, title, numbers)
    ]
    table.published(simulation, ours, checks, console)
    return table.verdict(checks, console)


def _numbers(of: Mapping[str, Spread]) -> dict[str, dict[str, float]]:
    """Policy to its mean numbers; the first policy is the baseline."""
    baseline = next(iter(of.values())).mean
    return {policy: compare.numbers(s.mean, baseline) for policy, s in of.items()}


def _report(
    runs: Mapping[str, Mapping[str, Train]], folder: pathlib.Path, console: Console
) -> None:
    for title, of in runs.items():
        for policy, run in of.items():
            numbers, trace = outcome.simulate(run, run.seed, keeps_events=True)
            path = report.write(folder, f"{title} {policy}", numbers, trace)
            console.print(path, soft_wrap=True)


def _plain(found: Mapping[str, Mapping[str, Spread]]) -> dict[str, Any]:
    return {
        title: {policy: dataclasses.asdict(spread) for policy, spread in of.items()}
        for title, of in found.items()
    }


def _title(scenario: str, choice: Mapping[str, Any]) -> str:
    swept = " ".join(f"{name}={value}" for name, value in choice.items())
    return " ".join(part for part in (scenario, swept) if part)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jigsaw_jax.simulate", allow_abbrev=False, description=__doc__
    )
    parser.add_argument("--gin", action="append", required=True, metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="BINDING")
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="like 'R=32,64' or 'Pipeline.mode=sync,stream'; repeat it for a grid",
    )
    parser.add_argument(
        "--recommend",
        action="store_true",
        help="search Simulation.search for the least time a round that fits in memory",
    )
    parser.add_argument(
        "--replay",
        metavar="RUN_DIR",
        help="simulate that run, from what its events say, and compare",
    )
    parser.add_argument(
        "--fit",
        metavar="RUN_DIR",
        help="take costs and lengths from that run's events, to ask what another R, U,"
        " F or mode would take",
    )
    parser.add_argument(
        "--report", metavar="DIR", help="also draw a timeline page a policy there"
    )
    parser.add_argument("--json", metavar="OUT", help="also write every outcome")
    parser.add_argument(
        "--width", type=int, metavar="COLUMNS", help="of the tables; default: terminal"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
