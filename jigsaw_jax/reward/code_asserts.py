"""Asserts of a data set, split so that no expected answer enters the program's process.

Of `assert f(2) == 4` the program is asked `f(2)`, and 4 stays here. What can't be split
is refused, unless it is trusted and runs whole, inside, where a program can forge it.
"""

import ast
import builtins
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jigsaw_jax.reward.code_value import decode, equals, number

Judge = Callable[[str], bool]

# Builtins that an expected value may be written with.
_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "frozenset": frozenset,
    "list": list,
    "set": set,
    "tuple": tuple,
}
# A program can put something of its own in these places, which says yes to anything.
_HELPERS = frozenset({*dir(builtins), *sys.stdlib_module_names, "np", "numpy"})
_CLOSE = ("isclose", "math.isclose")
# What a trusted assert answers when it did not raise.
_PASSED = "True"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One question and how its answer is judged.

    judge: what it was that the program wrote, right or not.
    stdin: for a script.
    statements: run behind the program, before the expression.
    expression: what is asked; empty for a script.
    """

    judge: Judge
    stdin: str = ""
    statements: str = ""
    expression: str = ""


def judge_equal(*accepted: Any, is_json: bool) -> Judge:
    """Right is an encoded value that equals one of the accepted."""

    def judge(output: str) -> bool:
        found = decode(output)
        try:
            return found is not None and any(
                equals(found[0], expected, is_json=is_json) for expected in accepted
            )
        except RecursionError:
            return False

    return judge


def assert_tests(text: str, *, trusts_asserts: bool) -> Iterator[Test]:
    """A test for each assert at the top level of a text, behind what is before it.

    Args:
      text: Python statements.
      trusts_asserts: take a text whose asserts can't all be split as one test.

    Yields:
      The tests.

    Raises:
      ValueError: it is no Python, or its asserts can't be split.
    """
    try:
        body = ast.parse(text).body
        tests = _split_all(body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"a test must be Python, got {text[:80]!r}") from None
    if tests:
        yield from tests
    elif trusts_asserts:
        passed = judge_equal(True, is_json=True)
        yield Test(statements=text, expression=_PASSED, judge=passed)
    else:
        raise ValueError(
            "an assert must compare with a literal to be judged outside of the "
            f"program, got {text[:80]!r}; Reward.code_trusts_asserts = True runs it "
            "inside, where a program can forge it"
        )


def _split_all(body: list[ast.stmt]) -> list[Test]:
    """A test for each assert; none where one of them can't be split."""
    before: list[ast.stmt] = []
    tests = []
    for statement in body:
        if not isinstance(statement, ast.Assert):
            if any(isinstance(inner, ast.Assert) for inner in ast.walk(statement)):
                return []
            before.append(statement)
            continue
        parts = _split(statement.test, before)
        if parts is None:
            return []
        asked, judge = parts
        statements = "\n".join(map(ast.unparse, before))
        expression = ast.unparse(asked)
        tests.append(Test(statements=statements, expression=expression, judge=judge))
    return tests


def _split(
    condition: ast.expr, before: list[ast.stmt]
) -> tuple[ast.expr, Judge] | None:
    """The question in an assert, and its judge; None where they can't be parted."""
    match condition:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            return _split_sides(left, right, before)
        case ast.UnaryOp(op=ast.Not(), operand=asked) if _is_own(asked, before):
            return condition, judge_equal(True, is_json=True)
        case ast.Call(func=func) if ast.unparse(func) in _CLOSE:
            return _split_close(condition)
        case _ if _is_own(condition, before):
            # Anything can be true, and these two make it a bool.
            negation = ast.UnaryOp(op=ast.Not(), operand=condition)
            asked = ast.UnaryOp(op=ast.Not(), operand=negation)
            return asked, judge_equal(True, is_json=True)
    return None


def _split_sides(
    left: ast.expr, right: ast.expr, before: list[ast.stmt]
) -> tuple[ast.expr, Judge] | None:
    """The side that is no literal is the question, the literal its answer."""
    if _literal(left) is not None:
        left, right = right, left
    expected = _literal(right)
    if expected is None or _literal(left) is not None:
        return None
    if isinstance(expected[0], bool) and not _is_own(left, before):
        return None
    return left, judge_equal(expected[0], is_json=False)


def _is_own(asked: ast.expr, before: list[ast.stmt]) -> bool:
    """Whether it is a call of something of the program's, which alone says yes or no.

    Not so are `isinstance(f(2), int)` and `same(f(2), 4)`: the answer would go along.
    """
    if not isinstance(asked, ast.Call):
        return False
    arguments = [*asked.args, *asked.keywords]
    inner = [node for argument in arguments for node in ast.walk(argument)]
    has_call = any(isinstance(node, ast.Call) for node in inner)
    has_comparison = any(isinstance(node, ast.Compare) for node in inner)
    if has_comparison or (has_call and len(arguments) > 1):
        return False
    root = asked.func
    while isinstance(root, (ast.Attribute, ast.Call)):
        root = root.value if isinstance(root, ast.Attribute) else root.func
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    defined = any(isinstance(statement, kinds) for statement in before)
    return isinstance(root, ast.Name) and root.id not in _HELPERS and not defined


def _split_close(call: ast.Call) -> tuple[ast.expr, Judge] | None:
    """Of `math.isclose(asked, 2.5, abs_tol=0.1)`, the first argument and its judge."""
    match call.args:
        case [asked, answer]:
            expected = _literal(answer)
        case _:
            return None
    options = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
    if expected is None or not options.keys() <= {"rel_tol", "abs_tol"}:
        return None
    numbers = [expected, *options.values()]
    if not all(n and isinstance(n[0], (int, float)) for n in numbers):
        return None
    tolerances: dict[str, Any] = {
        str(name): value[0] for name, value in options.items() if value
    }

    def judge(output: str) -> bool:
        found = decode(output)
        value = None if found is None else number(found[0])
        try:
            return value is not None and math.isclose(value, expected[0], **tolerances)
        except OverflowError:
            return False

    return asked, judge


def _literal(node: ast.expr) -> list[Any] | None:
    """A list of the value that a literal spells, or None where it is no literal."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if (
            name in _CONTAINERS and len(arguments) <= 1
        ):
            inner = _literal(arguments[0]) if arguments else [()]
            if inner is None or not isinstance(inner[0], (str, list, tuple, set, dict)):
                return None
            return [_CONTAINERS[name](inner[0])]
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    return None if _has_other_types(value) else [value]


def _has_other_types(value: Any) -> bool:
    """Whether it holds what `inside.py` does not encode: bytes, complex, ellipsis."""
    if isinstance(value, dict):
        return any(map(_has_other_types, (*value.keys(), *value.values())))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_other_types, value))
    return not (value is None or isinstance(value, (bool, int, float, str)))
