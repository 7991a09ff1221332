import pytest

from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.reference import check_reference
from jigsaw_jax.settings import Reward

QUESTION = "Capital of France?\nA) Rome\nB) Paris\n(C) Oslo"


def problem(answer, *, task="mine", text="", metadata=None):
    return Prompt(
        uid="u", tokens=(), text=text, answer=answer, task=task, metadata=metadata or {}
    )


def check(name, prompt, **settings):
    weights = {"format": 0.1, name: 1.0}
    check_reference(prompt, Reward(weights=weights, timeout_s=30.0, **settings))


@pytest.mark.parametrize(
    ("name", "prompt", "rule"),
    [
        ("numeric", problem("seven"), "must be a number .* got 'seven'"),
        ("numeric", problem("7 apples"), "must be a number"),
        ("numeric", problem(""), "must not be empty"),
        ("task", problem("x", task="chain_sum"), "must be a number .*'task'"),
        ("exact", problem("  "), "must not be empty, got '  '"),
        ("math_verify", problem(""), "must not be empty"),
        ("multiple_choice", problem("Paris"), "must be a letter from A to J"),
        ("multiple_choice", problem("K"), "must be a letter from A to J"),
        ("multiple_choice", problem("D", text=QUESTION), "options A, B, C, got 'D'"),
        ("task", problem("(d)", task="multiple_choice", text=QUESTION), "A, B, C"),
        ("task", problem("", task="countdown"), "'numbers' and 'target'"),
        (
            "task",
            problem("", task="puzzle24", metadata={"numbers": [1, 2.5]}),
            "'numbers' in whole",
        ),
        ("code", problem("4"), "must be JSON of tests .*'code'"),
        ("code", problem('{"inputs": ["2"], "outputs": []}'), "must be JSON of tests"),
        ("code", problem('["assert f(2) ="]'), "must be Python"),
        ("code", problem('["assert f(2) > g(2)"]'), "literal .*code_trusts_asserts"),
        ("reasoning_gym", problem("1+1", task="countdown"), "runs the answer"),
        ("reasoning_gym", problem("1", task="coin_flip"), "rewards junk"),
    ],
)
def test_what_no_score_can_come_of_is_refused_with_the_rule(name, prompt, rule):
    with pytest.raises(ValueError, match=rule):
        check(name, prompt)


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("numeric", problem("-1,000.5")),
        ("numeric", problem("14/2")),
        ("exact", problem("seven")),
        ("task", problem("seven", task="poetry")),
        ("lowercase_share", problem("")),
        ("multiple_choice", problem("(b)", text=QUESTION)),
        ("multiple_choice", problem("C", text=QUESTION)),
        # The options are not labelled, or only inside a sentence.
        ("multiple_choice", problem("D", text="Which one?")),
        ("multiple_choice", problem("D", text="J. A. Smith says: D - all of them")),
        ("multiple_choice", problem("E", text="A: 1 B: 2 (C) 3 (D) 4 (E) 5")),
        ("task", problem("", task="puzzle24", metadata={"numbers": [1, 2, 3, 4]})),
        ("reasoning_gym", problem("", task="game_of_life")),
    ],
)
def test_what_can_be_scored_passes(name, prompt):
    check(name, prompt)


def test_scorers_that_execute_pass_where_they_are_allowed():
    prompt = problem("1+1", task="countdown")
    check("reasoning_gym", prompt, allow_executing_scorers=True)
