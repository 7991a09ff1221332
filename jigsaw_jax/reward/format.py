"""The completion has a given form."""

import re


def matches_format(text: str, pattern: str) -> float:
    """1 where the whole text matches the regular expression, else 0."""
    return float(re.fullmatch(pattern, text) is not None)
