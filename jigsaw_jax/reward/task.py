"""Our strict scorer of each task that we show; other tasks must match exactly."""

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

    The metadata of "countdown" and "puzzle24" must hold what reasoning-gym puts there.
    """
    if prompt.task in NUMERIC_TASKS:
        return numeric(answer, prompt.answer)
    if prompt.task == "multiple_choice":
        return multiple_choice(answer, prompt.answer)
    if prompt.task in ("countdown", "puzzle24"):
        target = 24 if prompt.task == "puzzle24" else prompt.metadata["target"]
        return expression(answer, numbers=prompt.metadata["numbers"], target=target)
    return exact(answer, prompt.answer)
