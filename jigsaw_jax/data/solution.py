"""What a supervised warm-up is shown: the answer, or the steps that lead to it."""

import re

from jigsaw_jax.records import Prompt

_TERMS = re.compile(r"(\d+(?: [+-] \d+)+) =\s*$")


def solution_text(template: str, prompt: Prompt) -> str:
    """The template with {answer} and {steps} filled in.

    {steps} are the running totals of a chain of sums, joined by "=", the answer last:
    "3 + 5 - 8 + 6 =" gives "8=0=6".

    Args:
      template: WarmUp.solution.
      prompt: the problem.

    Returns:
      The text that stands behind the prompt.

    Raises:
      ValueError: {steps} are asked for and the prompt does not end in a chain of sums.
    """
    text = template.replace("{answer}", prompt.answer)
    if "{steps}" in text:
        text = text.replace("{steps}", "=".join(map(str, running_totals(prompt.text))))
    return text


def running_totals(text: str) -> list[int]:
    """The totals after the second, third, ... term of the sum that ends a text.

    Args:
      text: a prompt.

    Returns:
      One total a term, without the first.

    Raises:
      ValueError: no sum of two or more whole numbers ends it.
    """
    match = _TERMS.search(text)
    if match is None:
        raise ValueError(
            "WarmUp.solution must have {steps} only where a prompt ends in a sum like "
            f"'1 + 2 - 3 =', got {text!r}; use {{answer}}"
        )
    first, *rest = re.findall(r"[+-]? ?\d+", match[1])
    totals = [int(first)]
    for term in rest:
        totals.append(totals[-1] + int(term.replace(" ", "")))
    return totals[1:]
