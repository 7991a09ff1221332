"""Whether a problem's reference answer is one that the chosen rewards can score."""

from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.code_tests import parse_tests
from jigsaw_jax.reward.multiple_choice import check_option
from jigsaw_jax.reward.numeric import numeric
from jigsaw_jax.reward.reasoning_gym import check_allowed
from jigsaw_jax.reward.task import NUMERIC_TASKS, puzzle
from jigsaw_jax.settings import Reward

# These do not look at the reference.
_BLIND = frozenset({"format", "lowercase_share"})


def check_reference(prompt: Prompt, reward: Reward) -> None:
    """Refuse a problem whose every score would be missing, or that nothing answers.

    What others' verifiers make of a reference only shows when they run.

    Args:
      prompt: with the problem's whole text.
      reward: which rewards score it.

    Raises:
      ValueError: with the rule, the value, and the reward that it does not fit.
    """
    for name in reward.weights:
        if name in _BLIND:
            continue
        try:
            _check(name, prompt, reward)
        except (ValueError, PermissionError) as error:
            raise ValueError(f"{error}; Reward.weights has {name!r}") from None


def _check(name: str, prompt: Prompt, reward: Reward) -> None:
    if name == "task" and prompt.task in ("countdown", "puzzle24"):
        puzzle(prompt)
        return
    if name == "reasoning_gym":
        # Some of these tasks have many right answers, and none is given.
        check_allowed(prompt.task, allow_executing=reward.allow_executing_scorers)
        return
    if not prompt.answer.strip():
        raise ValueError(f"answer must not be empty, got {prompt.answer!r}")
    if name == "code":
        parse_tests(prompt.answer, trusts_asserts=reward.code_trusts_asserts)
    is_task = name == "task"
    if name == "numeric" or (is_task and prompt.task in NUMERIC_TASKS):
        numeric("", prompt.answer)
    if name == "multiple_choice" or (is_task and prompt.task == "multiple_choice"):
        check_option(prompt.answer, prompt.text)
