"""Where in a completion the answer is."""

OPEN = "<answer>"
CLOSE = "</answer>"


def extract_answer(text: str, mark: str | None = None) -> str:
    """What the last closed `<answer>` holds, or the whole text; without outer space.

    With a `mark` it is what stands behind the last mark, or the whole text.

    An `<answer>` that was never closed counts as text, so that a strict scorer does
    not accept a completion cut off in the middle of its answer. Time is linear in the
    length, whatever a model writes.
    """
    if mark is not None:
        return text.rpartition(mark)[2].strip()
    end = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, end) if end >= 0 else -1
    return text[start + len(OPEN) : end].strip() if start >= 0 else text.strip()
