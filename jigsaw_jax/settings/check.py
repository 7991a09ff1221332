"""The few checks that every settings class shares."""

import re
from collections.abc import Iterable


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ValueError unless `value` is one of `allowed`."""
    choices = sorted(allowed)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def at_least(name: str, value: int | float, least: int | float) -> None:
    """Raise ValueError unless `value >= least` (NaN is refused)."""
    if not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")


def above(name: str, value: int | float, bound: int | float) -> None:
    """Raise ValueError unless `value > bound` (NaN is refused)."""
    if not value > bound:
        raise ValueError(f"{name} must be greater than {bound}, got {value!r}")


def share(name: str, value: float) -> None:
    """Raise ValueError unless `value` is from 0 to 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")


def divides(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """Raise ValueError unless `divisor` divides `value`."""
    if value % divisor:
        below = value - value % divisor
        fix = f"{below} or {below + divisor}" if below > 0 else str(divisor)
        raise ValueError(
            f"{name} must be a multiple of {divisor_name} = {divisor}, got {value!r}; "
            f"take {fix}"
        )


def pattern(name: str, value: str, groups: int) -> None:
    """Raise ValueError unless `value` is a regular expression of `groups` or more."""
    try:
        compiled = re.compile(value)
    except re.error as error:
        raise ValueError(
            f"{name} must be a regular expression, got {value!r}: {error}"
        ) from None
    if compiled.groups < groups:
        raise ValueError(f"{name} must have {groups} group or more, got {value!r}")
