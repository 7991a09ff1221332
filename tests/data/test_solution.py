import pytest

from jigsaw_jax.data.solution import running_totals, solution_text
from jigsaw_jax.records import Prompt


def prompt_of(text, answer):
    return Prompt(uid="u", tokens=(1,), text=text, answer=answer, task="chain_sum")


def test_steps_are_the_running_totals_and_end_in_the_answer():
    prompt = prompt_of("3 + 5 - 8 + 6 =", "6")
    assert solution_text("{steps}", prompt) == "8=0=6"
    assert solution_text("{answer}", prompt) == "6"


def test_totals_go_below_zero():
    assert running_totals("State it: 3 - 15 - 80 =") == [-12, -92]


def test_a_prompt_that_is_no_sum_is_refused_by_name():
    with pytest.raises(ValueError, match=r"WarmUp.solution .* 'What is it\?'"):
        solution_text("{steps}", prompt_of("What is it?", "6"))
