"""Settings classes seen from outside: fields by name, values fitted to their types."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

_SCALARS = (bool, int, float, str, type(None))


def hints(cls: type) -> Mapping[str, Any]:
    """Type of every field of a settings class, by name."""
    resolved = typing.get_type_hints(cls)
    return {field.name: resolved[field.name] for field in dataclasses.fields(cls)}


def defaults(cls: type) -> dict[str, Any]:
    """Default of every field of a settings class that has one."""
    missing = dataclasses.MISSING
    values = {}
    for field in dataclasses.fields(cls):
        if field.default is not missing:
            values[field.name] = field.default
        elif field.default_factory is not missing:
            values[field.name] = field.default_factory()
    return values


def describe(hint: Any) -> str:
    """A type as a person would write it: "int", "tuple[int, ...]", "float or None"."""
    if isinstance(hint, types.UnionType):
        return " or ".join(describe(arm) for arm in typing.get_args(hint))
    if hint is types.NoneType:
        return "None"
    return (
        hint.__name__ if isinstance(hint, type) and not _is_generic(hint) else str(hint)
    )


def fit(value: Any, hint: Any) -> Any:
    """`value` as the type `hint` has it.

    A whole number fits a float and a list fits a tuple; nothing else is converted,
    so 3.0 is no int, True is no number and text is never read as something else.

    Args:
      value: a literal.
      hint: the type of a settings field.

    Returns:
      The value, converted where that loses nothing.

    Raises:
      TypeError: the value does not fit.
    """
    if isinstance(hint, types.UnionType):
        return _fit_union(value, hint)
    if _is_generic(hint):
        return _fit_tuple(value, hint)
    if hint is float and type(value) is int:
        return float(value)
    is_fit = type(value) is hint if hint in _SCALARS else isinstance(value, hint)
    if hint is types.NoneType:
        is_fit = value is None
    if not is_fit:
        raise TypeError(f"must be {describe(hint)}, got {value!r}")
    # Gin can't read infinity back, and no setting means anything by it.
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"must be finite, got {value!r}")
    return value


def flatten(settings: Any) -> dict[str, Any]:
    """Every plain value of nested settings by its name, "Decoder.num_layers" say."""
    flat = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value)
        else:
            flat[f"{type(settings).__name__}.{field.name}"] = value
    return flat


def _is_generic(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _fit_union(value: Any, hint: Any) -> Any:
    # An exact arm goes before one that converts: 3 stays an int in `float | int`.
    arms = typing.get_args(hint)
    for arm in sorted(arms, key=lambda arm: type(value) is not arm):
        try:
            return fit(value, arm)
        except TypeError:
            continue
    raise TypeError(f"must be {describe(hint)}, got {value!r}")


def _fit_tuple(value: Any, hint: Any) -> tuple[Any, ...]:
    element = typing.get_args(hint)[0]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"must be {describe(hint)}, got {value!r}")
    try:
        return tuple(fit(item, element) for item in value)
    except TypeError:
        raise TypeError(f"must be {describe(hint)}, got {value!r}") from None
