"""Arithmetic expressions over given numbers: countdown and the puzzle of 24.

The answer is parsed by Python's own parser, which runs nothing, and its tree is worked
out in exact fractions here. It is never evaluated as Python.
"""

import ast
import collections
import operator
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

# A tree of at most this many characters is too shallow to overflow any stack.
LENGTH_MAX = 200
_CHARACTERS = frozenset("0123456789+-*/() ")
_SPELLINGS = str.maketrans(
    {"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-"}
)
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def expression(answer: str, *, numbers: Sequence[int], target: int) -> float:
    """1 where the answer uses each number exactly once and equals the target, else 0.

    Args:
      answer: an expression of whole numbers, + - * / and parentheses.
      numbers: what it must be made of; one that is there twice must be used twice.
      target: what it must be, exactly.

    Returns:
      1.0 or 0.0.
    """
    tree = _parse(answer)
    if tree is None:
        return 0.0
    try:
        used = collections.Counter(_constants(tree))
        value = _value(tree)
    except (_NotArithmeticError, ZeroDivisionError):
        return 0.0
    return float(used == collections.Counter(numbers) and value == target)


class _NotArithmeticError(Exception):
    """The tree holds something other than numbers and the four operations."""


def _parse(answer: str) -> ast.expr | None:
    text = answer.translate(_SPELLINGS).strip()
    if len(text) > LENGTH_MAX or not _CHARACTERS.issuperset(text):
        return None
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _constants(tree: ast.expr) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield node.value


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() as number):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.BinOp() if type(node.op) in _OPERATIONS:
            operation = _OPERATIONS[type(node.op)]
            return operation(_value(node.left), _value(node.right))
    raise _NotArithmeticError
