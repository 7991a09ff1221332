"""Composes the rewards of one completion into its score."""

import math
from collections.abc import Callable, Mapping

from jigsaw_jax.records import Prompt, Score
from jigsaw_jax.reward.answer import extract_answer
from jigsaw_jax.reward.code import score_code
from jigsaw_jax.reward.exact import exact
from jigsaw_jax.reward.format import matches_format
from jigsaw_jax.reward.function import load_function, score_function
from jigsaw_jax.reward.lowercase_share import lowercase_share
from jigsaw_jax.reward.multiple_choice import multiple_choice
from jigsaw_jax.reward.numeric import numeric
from jigsaw_jax.reward.sandbox.client import require, sandbox_of
from jigsaw_jax.reward.sandbox.limits import limits_of
from jigsaw_jax.reward.task import score_task
from jigsaw_jax.settings import Reward

# A scorer may add values to the score's parts, which count nothing.
Notes = dict[str, float]
Scorer = Callable[[Prompt, str, Reward], float | tuple[float, Notes]]


def score(prompt: Prompt, text: str, reward: Reward) -> Score:
    """The weighted sum of the rewards that `reward` names.

    A reward that fails is None, and then so is the value: missing, not 0. A completion
    cut off at the cap is scored like any other; the objective decides what to do.

    Args:
      prompt: the problem.
      text: the completion, without its stop token.
      reward: names, weights and settings of the rewards.

    Returns:
      The score, with the value of every reward.
    """
    parts: dict[str, float | None] = {}
    failures = []
    for name in reward.weights:
        try:
            result = SCORERS[name](prompt, text, reward)
            value, notes = result if isinstance(result, tuple) else (result, {})
            parts |= {name: _finite(value), **notes}
        # A verifier is others' code and may raise anything: its score is missing,
        # whatever it was, and the failure says so.
        except Exception as error:  # noqa: BLE001
            parts[name] = None
            failures.append(f"error: {name}: {type(error).__name__}: {error}")
    values = [
        weight * value
        for name, weight in reward.weights.items()
        if (value := parts[name]) is not None
    ]
    return Score(
        value=None if failures else math.fsum(values),
        parts=parts,
        failure="; ".join(failures) or None,
    )


def preload(reward: Reward) -> None:
    """Import or start what the rewards need, which takes long, before the first score.

    Args:
      reward: names them.

    Raises:
      IsolationError: this machine can't keep the programs of the reward "code".
    """
    if reward.function is not None:
        load_function(reward.function)
    if "code" in reward.weights:
        require(sandbox_of(limits_of(reward)).standing, reward)
    if "math_verify" in reward.weights:
        from jigsaw_jax.reward.math_verify import math_equal

        # Its first call builds a parser.
        math_equal("1", "1")
    if "reasoning_gym" in reward.weights:
        import reasoning_gym  # noqa: F401


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"a reward must be finite, got {value!r}")
    return float(value)


def _answer(text: str, reward: Reward) -> str:
    return extract_answer(text, reward.answer_mark)


def _code(prompt: Prompt, text: str, reward: Reward) -> tuple[float, Notes]:
    return score_code(prompt, text, reward, sandbox_of(limits_of(reward)).run)


def _function(prompt: Prompt, text: str, reward: Reward) -> float:
    assert reward.function is not None
    return score_function(reward.function, prompt, text)


def _math_verify(prompt: Prompt, text: str, reward: Reward) -> float:
    # Imported where it is used: it brings in sympy.
    from jigsaw_jax.reward.math_verify import math_equal

    return math_equal(_answer(text, reward), prompt.answer)


def _reasoning_gym(prompt: Prompt, text: str, reward: Reward) -> float:
    from jigsaw_jax.reward.reasoning_gym import score_reasoning_gym

    return score_reasoning_gym(
        _answer(text, reward), prompt, allow_executing=reward.allow_executing_scorers
    )


SCORERS: Mapping[str, Scorer] = {
    "code": _code,
    "exact": lambda prompt, text, reward: exact(_answer(text, reward), prompt.answer),
    "format": lambda _, text, reward: matches_format(text, reward.format_pattern),
    "function": _function,
    "lowercase_share": lambda _, text, __: lowercase_share(text),
    "math_verify": _math_verify,
    "multiple_choice": lambda prompt, text, reward: multiple_choice(
        _answer(text, reward), prompt.answer
    ),
    "numeric": lambda prompt, text, reward: numeric(
        _answer(text, reward), prompt.answer
    ),
    "reasoning_gym": _reasoning_gym,
    "task": lambda prompt, text, reward: score_task(_answer(text, reward), prompt),
}
