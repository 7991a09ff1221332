"""The answer is the reference, character for character."""


def exact(answer: str, reference: str) -> float:
    """1 where the answer equals the reference but for space around them, else 0."""
    return float(answer.strip() == reference.strip())
