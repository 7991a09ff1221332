import threading

import pytest

from jigsaw_jax import settings
from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.score import SCORERS, score
from jigsaw_jax.settings.reward import REWARDS


def _prompt(answer="7", task="chain_sum", **metadata):
    return Prompt(
        uid="u", tokens=(), text="p", answer=answer, task=task, metadata=metadata
    )


def _score(text, weights, **prompt):
    reward = settings.Reward(weights=weights)
    return score(_prompt(**prompt), text, reward)


def test_every_reward_of_the_settings_has_a_scorer():
    assert set(SCORERS) == REWARDS


def test_the_value_is_the_weighted_sum_of_the_parts():
    weights = {"task": 1.0, "format": 0.1, "lowercase_share": -0.5}
    result = _score("<answer>7</answer>", weights)
    share = 12 / 18
    assert result.parts == {"task": 1.0, "format": 1.0, "lowercase_share": share}
    assert result.value == pytest.approx(1.0 + 0.1 - 0.5 * share, abs=1e-12)
    assert result.failure is None


def test_a_legal_zero_survives():
    result = _score("8", {"task": 1.0})
    assert result.value == 0.0
    assert result.value is not None
    assert result.parts == {"task": 0.0}


def test_a_failed_part_makes_the_value_missing_and_not_zero():
    result = _score("7", {"numeric": 1.0, "exact": 1.0}, answer="seven")
    assert result.value is None
    assert result.parts == {"numeric": None, "exact": 0.0}
    assert result.failure is not None
    assert result.failure.startswith("error: numeric: ValueError: answer must be")


def test_four_completions_give_four_aligned_scores_though_one_fails():
    answers = ["7", "x", "8", "7"]
    results = [_score("7", {"numeric": 1.0}, answer=answer).value for answer in answers]
    assert results == [1.0, None, 0.0, 1.0]


# A package that reasoning-gym imports compares with "is".
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("name", ["math_verify", "reasoning_gym"])
def test_others_verifiers_score_off_the_main_thread(name):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(_score("<answer>7</answer>", {name: 1.0}))
    )
    thread.start()
    thread.join()
    assert [result.value for result in results] == [1.0]


@pytest.mark.parametrize("task", ["countdown", "n_queens", "coin_flip"])
def test_scorers_that_execute_or_believe_anything_are_refused(task):
    result = _score("1", {"reasoning_gym": 1.0}, task=task)
    assert result.value is None
    assert "PermissionError" in (result.failure or "")


def test_an_answer_mark_takes_what_stands_behind_the_last_one():
    prompt = Prompt(uid="u", tokens=(), text="", answer="6", task="chain_sum")
    marked = settings.Reward(weights={"task": 1.0}, answer_mark="=")
    assert score(prompt, "8=0=6", marked).value == 1.0
    assert score(prompt, "6=0=8", marked).value == 0.0
    assert score(prompt, "6=", marked).value == 0.0
    assert score(prompt, "6", marked).value == 1.0
