"""Simulated numbers beside published ones, and whether they are within bounds."""

import dataclasses
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from jigsaw_jax.settings import Simulation
from jigsaw_jax.simulation.outcome import NUMBERS, Outcome

# What "within" allows beside a single published value.
TOLERANCE = 0.08
Numbers = Mapping[str, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One number that has a bound.

    Attributes:
      scenario: in which.
      policy: whose.
      number: its name in `Outcome`, or "reduction".
      ours: simulated.
      published: a value, a band, or None where nothing is published.
      rule: of `Simulation.bounds`.
    """

    scenario: str
    policy: str
    number: str
    ours: float
    published: float | tuple[float, float] | None
    rule: str

    @property
    def is_met(self) -> bool:
        """Whether the number is within its bound; so where nothing is published."""
        if self.published is None:
            return True
        low, high = limits(self.published)
        is_low_enough = self.rule == "at_least" or self.ours <= high
        return is_low_enough and (self.rule == "at_most" or self.ours >= low)


def numbers(outcome: Outcome, baseline: Outcome) -> dict[str, float]:
    """Every number of a policy, with its reduction of the baseline's train_end_s."""
    own = dataclasses.asdict(outcome)
    return own | {"reduction": 1 - outcome.train_end_s / baseline.train_end_s}


def published(
    simulation: Simulation, scenario: str, policy: str, number: str
) -> float | tuple[float, float] | None:
    """What is published of a number, or None; a sweep's choice may stand behind it."""
    names = [
        name for name in simulation.published if f"{scenario} ".startswith(f"{name} ")
    ]
    for name in (*names, "any"):
        found = simulation.published.get(name, {}).get(policy, {}).get(number)
        if found is not None:
            return found
    return None


def check_names(simulation: Simulation) -> None:
    """Refuse what is published or bounded of what nobody simulates.

    Args:
      simulation: the policies, what is published, and the rules.

    Raises:
      ValueError: an unknown policy or number, or a band whose ends are swapped.
    """
    named = [("bounds", simulation.bounds)]
    named += [(f"published[{k!r}]", v) for k, v in simulation.published.items()]
    for where, policies in named:
        for policy, values in policies.items():
            if policy not in simulation.policies:
                known = ", ".join(simulation.policies) or "none"
                raise ValueError(
                    f"Simulation.{where} must name policies of Simulation.policies "
                    f"({known}), got {policy!r}"
                )
            for number, value in values.items():
                name = f"Simulation.{where}[{policy!r}][{number!r}]"
                if number not in (*NUMBERS, "reduction"):
                    raise ValueError(
                        f"{name} must be of one of {', '.join(NUMBERS)}, reduction"
                    )
                if where != "bounds" and operator.gt(*limits(value)):
                    raise ValueError(f"{name} must be (low, high), got {value!r}")


def limits(value: float | tuple[float, float]) -> tuple[float, float]:
    """(low, high) of a band, or of a value with the tolerance around it."""
    if isinstance(value, (tuple, list)):
        return float(value[0]), float(value[1])
    return (1 - TOLERANCE) * value, (1 + TOLERANCE) * value


def checks(
    simulation: Simulation, scenario: str, ours: Mapping[str, Numbers]
) -> Iterator[Check]:
    """The bounds of one scenario.

    Args:
      simulation: what is published, and the rules.
      scenario: its name.
      ours: policy to its numbers.

    Yields:
      One check a rule of a policy that was simulated.
    """
    for policy, rules in simulation.bounds.items():
        if policy not in ours:
            continue
        for number, rule in rules.items():
            yield Check(
                scenario=scenario,
                policy=policy,
                number=number,
                ours=ours[policy][number],
                published=published(simulation, scenario, policy, number),
                rule=rule,
            )


def shown(value: Any, *, is_share: bool) -> str:
    """A published value or band for people; "not published" where there is none."""
    if value is None:
        return "not published"
    low, high = value if isinstance(value, (tuple, list)) else (value, value)
    texts = [f"{x:.1%}" if is_share else f"{x:,.0f}" for x in (low, high)]
    return texts[0] if low == high else "-".join(texts)
