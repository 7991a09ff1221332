"""The letter of a multiple-choice answer."""

import re

LETTERS = "ABCDEFGHIJ"
# "The answer is (B)", "Answer: **B**"; a small letter only in brackets, or the article
# of "the answer is a matter of taste" would be a choice.
_STATED = re.compile(
    r"(?i:answer)\s*(?i:is|:|=)\s*:?\s*(?:\\boxed\{|[*_]{1,2})?"
    rf"(?:\(([{LETTERS}{LETTERS.lower()}])\)|([{LETTERS}])(?![A-Za-z']))"
)
# The whole answer is one letter, whatever is around it.
_ALONE = re.compile(
    r"(?:(?i:option|choice)\s+)?(?:\\boxed\{)?[\s(\[*_\"'`$]*"
    rf"([{LETTERS}{LETTERS.lower()}])[\s)\]*_\"'`$}}.:]*"
)
# "B) Paris", "(B) Paris", "B. Paris", "B: Paris" at the start of a line.
_LABEL = re.compile(rf"(?m)^\s*(?:\(([{LETTERS}])\)|([{LETTERS}])[.):])\s")
# The same anywhere in a question.
_OPTION = re.compile(rf"(?<![A-Za-z])([{LETTERS}])[).:]")
_OTHER = re.compile(rf"\b[{LETTERS}]\b")


def multiple_choice(answer: str, reference: str) -> float:
    """1 where the answer chooses the reference's letter and no other, else 0.

    Args:
      answer: what the model answered.
      reference: a letter from A to J, alone or in brackets.

    Returns:
      1.0 or 0.0.

    Raises:
      ValueError: the reference is no such letter.
    """
    return float(choice(answer) == _letter(reference))


def check_option(reference: str, question: str) -> None:
    """Refuse a reference that is none of the question's options.

    Options are the letters with a bracket, dot or colon behind; where there are not
    two of them, or the letter stands alone anywhere, every letter passes.

    Args:
      reference: a letter from A to J, alone or in brackets.
      question: the problem's text.

    Raises:
      ValueError: the reference is no such letter, or not among the options.
    """
    letter = _letter(reference)
    options = sorted(set(_OPTION.findall(question)))
    if len(options) > 1 and letter not in (*options, *_OTHER.findall(question)):
        raise ValueError(
            f"answer must be one of the question's options {', '.join(options)}, got "
            f"{reference!r}"
        )


def choice(text: str) -> str | None:
    """The one letter that `text` chooses, or None.

    The last "answer is B" counts, then a text that is one letter, then a text with one
    labelled line ("B) Paris"). Naming a second letter beside it chooses nothing.
    """
    text = text.strip()
    stated = list(_STATED.finditer(text))
    if stated:
        bracketed, bare = stated[-1].groups()
        letter = (bracketed or bare).upper()
        rest_of_line = text[stated[-1].end() :].partition("\n")[0]
        others = set(_OTHER.findall(rest_of_line)) - {letter}
        return None if others else letter
    if alone := _ALONE.fullmatch(text):
        return alone[1].upper()
    labels = {bracketed or bare for bracketed, bare in _LABEL.findall(text)}
    return labels.pop() if len(labels) == 1 else None


def _letter(reference: str) -> str:
    expected = _ALONE.fullmatch(reference.strip())
    if expected is None:
        raise ValueError(
            f"answer must be a letter from A to J for this reward, got {reference!r}"
        )
    return expected[1].upper()
