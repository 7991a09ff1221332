"""Junk and hostile answers at every task that we list."""

import time

import pytest

from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.answer import extract_answer
from jigsaw_jax.reward.task import LISTED_TASKS, score_task

RIGHT = {
    "countdown": ("(8 - 3) * 5", {"numbers": [8, 3, 5], "target": 25}),
    "puzzle24": ("8*(5*1 - 2)", {"numbers": [5, 1, 2, 8]}),
    "multiple_choice": ("C", {}),
}
HOSTILE = [
    "",
    " ",
    "\x00",
    "None",
    "banana",
    "True",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e999999999",
    "9**9**9**9",
    "9" * 100_000,
    "1/" * 50_000,
    "(" * 100_000,
    "[" * 100_000,
    "-" * 100_000 + "1",
    "1,000" * 30_000,
    "<answer>" * 20_000,
    "<answer></answer>" * 10_000,
    "The answer is A" * 7_000,
    "answer is" + " " * 50_000,
    "\u0664\u0662",
    "\uff14\uff12",
    "\u2163",
    "42\u202e",
    "<|im_end|>42",
    "42</s>",
    "<s>42",
    "41 and 42",
    "42 or 43",
    "A B C D",
    "__import__('os').system('touch {path}')",
    "open('{path}', 'w')",
    "exec(\"open('{path}','w').write('x')\")",
    "<answer>(lambda: open('{path}', 'w'))() or 42</answer>",
    "{{{{ cycler.__init__.__globals__.os.popen('touch {path}') }}}}",
    "$(touch {path})",
    "'; touch {path}; '",
]


def _prompt(task):
    answer, metadata = RIGHT.get(task, ("42", {}))
    return answer, Prompt(
        uid="u", tokens=(), text="p", answer=answer, task=task, metadata=metadata
    )


@pytest.mark.parametrize("task", sorted(LISTED_TASKS))
def test_the_right_answer_scores_one_and_junk_nothing(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right, prompt = _prompt(task)
    assert score_task(right, prompt) == 1.0
    started_s = time.thread_time()
    for text in HOSTILE:
        answer = extract_answer(text.replace("{path}", str(tmp_path / "pwned")))
        assert score_task(answer, prompt) == 0.0, text[:60]
    assert not list(tmp_path.iterdir())
    # 38 answers of up to 200 KB take 0.1 s; one quadratic step would take minutes.
    assert time.thread_time() - started_s < 5


def test_a_task_that_is_not_listed_must_match_exactly():
    prompt = Prompt(uid="u", tokens=(), text="p", answer="3 x 7", task="other")
    assert score_task("3 x 7", prompt) == 1.0
    assert score_task("the answer is 3 x 7", prompt) == 0.0


def test_the_24_puzzle_needs_24_and_countdown_its_target():
    numbers = {"numbers": [4, 6]}
    puzzle = Prompt(
        uid="u", tokens=(), text="p", answer="", task="puzzle24", metadata=numbers
    )
    assert score_task("4*6", puzzle) == 1.0
    assert score_task("4+6", puzzle) == 0.0
    countdown = Prompt(
        uid="u",
        tokens=(),
        text="p",
        answer="",
        task="countdown",
        metadata=numbers | {"target": 10},
    )
    assert score_task("4+6", countdown) == 1.0
    assert score_task("4*6", countdown) == 0.0
