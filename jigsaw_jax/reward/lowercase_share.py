"""The share of lower-case letters: a reward without a right answer, for benches."""


def lowercase_share(text: str) -> float:
    """Characters from a to z, divided by all characters; 0 for empty text."""
    if not text:
        return 0.0
    return sum("a" <= character <= "z" for character in text) / len(text)
