"""A reasoning-gym task's own scorer, partial credit included; only in the pool.

Two lists come from throwing junk at every scorer of reasoning-gym 0.1.25 and watching
what Python compiled; a slow test repeats that.
"""

import functools
from typing import Any

from jigsaw_jax.records import Prompt

# They evaluate the answer as Python, through eval() or sympy's parser.
EXECUTING = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
# They give full marks to "nan", to "0" or to anything at all.
GULLIBLE = frozenset({"coin_flip", "complex_arithmetic", "game_of_life_halting"})


def score_reasoning_gym(answer: str, prompt: Prompt, *, allow_executing: bool) -> float:
    """What the task's own scorer gives, from 0 to 1.

    Args:
      answer: what the model answered.
      prompt: names the task and holds its metadata.
      allow_executing: run the scorers that evaluate the answer.

    Returns:
      The score.

    Raises:
      PermissionError: the scorer would execute the answer, or rewards junk.
    """
    check_allowed(prompt.task, allow_executing=allow_executing)
    entry = {
        "question": prompt.text,
        "answer": prompt.answer,
        "metadata": prompt.metadata,
    }
    return _scorer(prompt.task)(answer, entry)


def check_allowed(task: str, *, allow_executing: bool) -> None:
    """Refuse a task's scorer.

    Args:
      task: whose scorer is meant.
      allow_executing: let scorers run that evaluate the answer.

    Raises:
      PermissionError: the scorer would execute the answer, or rewards junk.
    """
    if task in EXECUTING and not allow_executing:
        raise PermissionError(
            f"the scorer of {task} runs the answer as Python; use the reward "
            "'task', or set Reward.allow_executing_scorers = True"
        )
    if task in GULLIBLE:
        raise PermissionError(
            f"the scorer of {task} rewards junk; use the reward 'task'"
        )


@functools.cache
def _scorer(task: str) -> Any:
    from reasoning_gym import factory

    return factory.get_score_answer_fn(task)
