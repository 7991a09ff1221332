"""Simulated policies as tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from jigsaw_jax.settings import Simulation
from jigsaw_jax.simulation import compare
from jigsaw_jax.simulation.compare import Check, Numbers
from jigsaw_jax.simulation.outcome import Spread

_SHARES = frozenset({"reduction", "wait_ratio", "sampler_idle", "efficiency"})
_COLUMNS = (
    ("round s", "round_s"),
    ("to train end s", "train_end_s"),
    ("first dispatch s", "first_dispatch_s"),
    ("trainer waits", "wait_ratio"),
    ("sampler idle", "sampler_idle"),
    ("tokens/s trained", "goodput"),
    ("staleness", "staleness"),
    ("bound s", "bound_s"),
    ("of the bound", "efficiency"),
)


def policies(title: str, found: Mapping[str, Spread], console: Console) -> None:
    """Print one row a policy; behind a time stands its deviation over the seeds.

    Args:
      title: of the table.
      found: policy to its outcomes.
      console: to print to.
    """
    table = Table("policy", *(label for label, _ in _COLUMNS), title=title)
    for policy, spread in found.items():
        cells = []
        for _, name in _COLUMNS:
            mean, std = getattr(spread.mean, name), getattr(spread.std, name)
            text = cell(name, mean)
            cells.append(f"{text} ± {std:,.1f}" if name == "train_end_s" else text)
        table.add_row(policy, *cells)
    console.print(table)


def published(
    simulation: Simulation,
    found: Mapping[str, Mapping[str, Numbers]],
    checks: Sequence[Check],
    console: Console,
) -> None:
    """Print what is published beside what was simulated, and every bound.

    Args:
      simulation: what is published.
      found: scenario to policy to numbers.
      checks: all bounds.
      console: to print to.
    """
    for number in _numbers(simulation):
        is_share = number in _SHARES
        names = [p for p in simulation.policies if _has(simulation, p, number)]
        table = Table("scenario", title=f"{number}: published | simulated")
        for policy in names:
            table.add_column(policy)
        for scenario, ours in found.items():
            row = []
            for policy in names:
                value = compare.published(simulation, scenario, policy, number)
                text = compare.shown(value, is_share=is_share)
                row.append(f"{text} | {cell(number, ours[policy][number])}")
                row[-1] += _mark(checks, scenario, policy, number)
            table.add_row(scenario, *row)
        console.print(table)
    best(simulation, found, console)


def best(
    simulation: Simulation,
    found: Mapping[str, Mapping[str, Numbers]],
    console: Console,
) -> None:
    """Print every policy's time beside the bound that none can be below."""
    table = Table("scenario", title="Seconds to the last gradient, and of the bound")
    for policy in simulation.policies:
        table.add_column(policy)
    table.add_column("bound")
    for scenario, ours in found.items():
        cells = [
            f"{ours[p]['train_end_s']:,.1f} {ours[p]['efficiency']:.1%}"
            for p in simulation.policies
        ]
        last = ours[list(simulation.policies)[-1]]
        table.add_row(scenario, *cells, f"{last['bound_s']:,.1f}")
    console.print(table)


def verdict(checks: Sequence[Check], console: Console) -> bool:
    """Print what is out of bounds; whether nothing is.

    Args:
      checks: all bounds.
      console: to print to.

    Returns:
      True where all are met.
    """
    judged = [check for check in checks if check.published is not None]
    missed = [check for check in judged if not check.is_met]
    for check in missed:
        is_share = check.number in _SHARES
        text = compare.shown(check.published, is_share=is_share)
        console.print(
            f"out of bounds: {check.scenario}, {check.policy}: {check.number} must be "
            f"{check.rule.replace('_', ' ')} {text}, "
            f"got {cell(check.number, check.ours)}"
        )
    console.print(f"{len(judged) - len(missed)} of {len(judged)} bounds met")
    return not missed


def replayed(found: Mapping[str, tuple[float, float]], console: Console) -> None:
    """Print what a run measured beside what its replay came to."""
    table = Table("", "measured", "simulated", "error", title="Means over its rounds")
    for name, (measured, simulated) in found.items():
        error = f"{simulated / measured - 1:+.1%}" if measured else ""
        cells = (f"{x:.3f}" for x in (measured, simulated))
        table.add_row(name, *cells, error)
    console.print(table)


def cell(number: str, value: float) -> str:
    """A number for people."""
    if number in _SHARES:
        return f"{value:.1%}"
    if number.endswith("_s"):
        return f"{value:,.1f}"
    return f"{value:,.0f}" if number == "goodput" else f"{value:.2f}"


def _numbers(simulation: Simulation) -> list[str]:
    """Numbers that anything is published of, in the order of the file."""
    found: dict[str, None] = {}
    for policies_of in simulation.published.values():
        for values in policies_of.values():
            found.update(dict.fromkeys(values))
    return list(found)


def _has(simulation: Simulation, policy: str, number: str) -> bool:
    return any(number in of.get(policy, {}) for of in simulation.published.values())


def _mark(checks: Sequence[Check], scenario: str, policy: str, number: str) -> str:
    for check in checks:
        if (check.scenario, check.policy, check.number) == (scenario, policy, number):
            if check.published is None:
                return ""
            return " ok" if check.is_met else " OUT"
    return ""
