"""Our strict scorer of each task that we show; other tasks must match exactly."""

from typing import Any

from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.exact import exact
from jigsaw_jax.reward.expression import expression
from jigsaw_jax.reward.multiple_choice import multiple_choice
from jigsaw_jax.reward.numeric import numeric

NUMERIC_TASKS = frozenset(
    {
        "aiw",
        "basic_arithmetic",
        "chain_sum",
        "count_bits",
        "count_primes",
        "decimal_chain_sum",
        "gcd",
        "gsm8k",
        "gsm_symbolic",
        "largest_island",
        "lcm",
        "leg_counting",
        "letter_counting",
        "number_sequence",
        "products",
        "rectangle_count",
        "rotten_oranges",
        "simple_equations",
        "simple_geometry",
    }
)
LISTED_TASKS = NUMERIC_TASKS | {"countdown", "multiple_choice", "puzzle24"}


def score_task(answer: str, prompt: Prompt) -> float:
    """1 where the answer solves the prompt's task, else 0; no partial credit.

    "countdown" and "puzzle24" are as `puzzle` reads them.
    """
    if prompt.task in NUMERIC_TASKS:
        return numeric(answer, prompt.answer)
    if prompt.task == "multiple_choice":
        return multiple_choice(answer, prompt.answer)
    if prompt.task in ("countdown", "puzzle24"):
        numbers, target = puzzle(prompt)
        return expression(answer, numbers=numbers, target=target)
    return exact(answer, prompt.answer)


def puzzle(prompt: Prompt) -> tuple[list[int], int]:
    """The numbers and the target of "countdown" or "puzzle24".

    Args:
      prompt: of one of the two.

    Returns:
      The numbers, each to be used once, and what they must make.

    Raises:
      ValueError: the metadata does not have them.
    """
    numbers: Any = prompt.metadata.get("numbers")
    is_24 = prompt.task == "puzzle24"
    target = 24 if is_24 else prompt.metadata.get("target")
    is_whole = isinstance(numbers, list) and all(isinstance(n, int) for n in numbers)
    if is_whole and isinstance(target, int):
        return numbers, target
    wanted = "'numbers'" if is_24 else "'numbers' and 'target'"
    raise ValueError(
        f"metadata must hold {wanted} in whole numbers for the task {prompt.task}, "
        f"got {prompt.metadata!r}"
    )
