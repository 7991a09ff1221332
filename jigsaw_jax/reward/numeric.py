"""One number, compared without rounding."""

import re
from fractions import Fraction

# Beyond these lengths a text is no number that anyone was asked for, and converting it
# would take long.
LENGTH_MAX = 400
EXPONENT_MAX = 1000

# Digits are 0-9 only: \d would also take the digits of every other script.
_DECIMAL = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_NUMBER = re.compile(rf"([+-]?)({_DECIMAL})(?:[eE]([+-]?[0-9]{{1,4}}))?")
_FRACTION = re.compile(r"([+-]?)([0-9]+) ?/ ?([0-9]+)")


def numeric(answer: str, reference: str) -> float:
    """1 where both are the same number, else 0.

    A number is an integer, a decimal, a number with an exponent or a fraction, with
    thousands separators in the right places and with either minus sign; nothing may
    stand beside it. So "7", "+7.0", "14/2" and "7e0" are equal, and "12 and 13" or
    "7 apples" are no number.

    Args:
      answer: what the model answered.
      reference: a number.

    Returns:
      1.0 or 0.0.

    Raises:
      ValueError: the reference is no number.
    """
    expected = parse_number(reference)
    if expected is None:
        raise ValueError(f"answer must be a number for this reward, got {reference!r}")
    return float(parse_number(answer) == expected)


def parse_number(text: str) -> Fraction | None:
    """The number that `text` spells, or None where it spells none."""
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if len(text) > LENGTH_MAX:
        return None
    if match := _FRACTION.fullmatch(text):
        sign, numerator, denominator = match.groups()
        if not int(denominator):
            return None
        return _signed(sign, Fraction(int(numerator), int(denominator)))
    if match := _NUMBER.fullmatch(text):
        sign, decimal, exponent = match.groups(default="0")
        if abs(int(exponent)) > EXPONENT_MAX:
            return None
        value = Fraction(decimal.replace(",", "")) * Fraction(10) ** int(exponent)
        return _signed(sign, value)
    return None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value
