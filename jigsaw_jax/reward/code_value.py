"""Compares what a program answered with what was expected, outside of the program.

A program's value comes as `sandbox/inside.py` encodes it: null, true, false, or a pair
of the type's name and the contents. The comparison walks the expected value, so that
its time is bounded by what the data set wrote and not by what a program did.
"""

import json
import math
from collections.abc import Iterable, Set
from typing import Any

# Sums in another order differ in the last digits.
RELATIVE = 1e-9
ABSOLUTE = 1e-12


def decode(output: str) -> list[Any] | None:
    """A list of the one encoded value, or None where the output is none."""
    try:
        return [json.loads(output)]
    # Text nested too deeply, or a number of too many digits, is no value either.
    except (ValueError, RecursionError):
        return None


def equals(found: Any, expected: Any, *, is_json: bool) -> bool:
    """Whether an encoded value is the expected one, as Python's == would say.

    But floats may differ in the last digits.

    Args:
      found: encoded by the program, so anything that JSON can say.
      expected: a builtin value.
      is_json: the expected value was JSON: tuples equal lists, keys are compared as
        text, and true and 1 are different.

    Returns:
      Whether they are equal.
    """
    if found is None or isinstance(found, bool) or expected is None:
        return found is expected if is_json else found == expected
    kind, contents = _pair(found)
    if isinstance(expected, (bool, int, float)):
        is_alike = kind in ("int", "float")
        is_alike = is_alike and not (is_json and isinstance(expected, bool))
        return is_alike and _is_number(contents, expected)
    if isinstance(expected, str):
        return kind == "str" and contents == expected
    if not isinstance(contents, list) or len(contents) != len(expected):
        return False
    return _holds(kind, contents, expected, is_json=is_json)


def number(found: Any) -> int | float | None:
    """The number that was encoded, or None."""
    match found:
        case ["int" | "float", (int() | float()) as contents]:
            return contents
    return None


def _pair(found: Any) -> tuple[str, Any]:
    match found:
        case [str(kind), contents]:
            return kind, contents
    return "", None


def _holds(kind: str, contents: list[Any], expected: Any, *, is_json: bool) -> bool:
    """Whether a container of as many members as expected holds the same."""
    if isinstance(expected, dict):
        return kind == "dict" and _has_items(contents, expected, is_json=is_json)
    if isinstance(expected, (set, frozenset)):
        return kind in ("set", "frozenset") and _has_members(contents, expected)
    kinds = ("list", "tuple") if is_json else (type(expected).__name__,)
    return kind in kinds and _all_equal(contents, expected, is_json=is_json)


def _is_number(found: Any, expected: int | float) -> bool:
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return False
    if isinstance(found, int) and isinstance(expected, int):
        return found == expected
    try:
        return math.isclose(found, expected, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    except OverflowError:
        return False


def _all_equal(found: list[Any], expected: Iterable[Any], *, is_json: bool) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(equals(f, e, is_json=is_json) for f, e in pairs)


def _has_members(found: list[Any], expected: Set[Any]) -> bool:
    keys = [_key(item, is_json=False) for item in found]
    return None not in keys and {key[0] for key in keys if key} == expected


def _has_items(found: list[Any], expected: dict[Any, Any], *, is_json: bool) -> bool:
    left = dict(expected)
    for item in found:
        match item:
            case [key, value]:
                pass
            case _:
                return False
        name = _key(key, is_json=is_json)
        if name is None or name[0] not in left:
            return False
        if not equals(value, left.pop(name[0]), is_json=is_json):
            return False
    return True


def _key(encoded: Any, *, is_json: bool) -> tuple[Any] | None:
    """A key of a mapping, or None where the code is no hashable value's."""
    if encoded is None or isinstance(encoded, bool):
        return (json.dumps(encoded) if is_json else encoded,)
    match encoded:
        case ["str", str(contents)]:
            return (contents,)
        case ["int" | "float", (int() | float()) as contents]:
            return (json.dumps(contents) if is_json else contents,)
        case ["tuple" | "frozenset" as kind, list(items)] if not is_json:
            keys = [_key(item, is_json=False) for item in items]
            if None not in keys:
                values = [key[0] for key in keys if key]
                return (tuple(values) if kind == "tuple" else frozenset(values),)
    return None
