"""Equality of mathematical answers as the math-verify package judges it.

It is lenient (it rounds decimals, and finds a number in a sentence) and hostile input
can keep it busy for ever, so it runs only in the pool.
"""

from typing import Any

import math_verify as package

# Its own time-outs use signals, which only the main thread may; ours is a kill.
_NO_TIMEOUT: Any = None


def math_equal(answer: str, reference: str) -> float:
    """1 where math-verify calls the answer equal to the reference, else 0.

    Args:
      answer: what the model answered, without tags.
      reference: a LaTeX or plain expression.

    Returns:
      1.0 or 0.0.

    Raises:
      ValueError: math-verify finds no expression in the reference.
    """
    expected = _parse(reference)
    if not expected:
        raise ValueError(
            f"answer must be mathematics for this reward, got {reference!r}"
        )
    found = _parse(answer)
    return float(package.verify(expected, found, timeout_seconds=_NO_TIMEOUT))


def _parse(text: str) -> list:
    # Bare text is read as LaTeX only between dollar signs.
    plain = text.replace("\N{MINUS SIGN}", "-")
    found = package.parse(plain, parsing_timeout=_NO_TIMEOUT)
    return found or package.parse(f"${plain}$", parsing_timeout=_NO_TIMEOUT)
