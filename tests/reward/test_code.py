"""The reward "code": forms of tests, what a program can't forge, and the pool."""

import json
import queue

import pytest

from jigsaw_jax import settings
from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.code import score_code
from jigsaw_jax.reward.code_tests import parse_tests
from jigsaw_jax.reward.pool import RewardPool
from jigsaw_jax.reward.sandbox.client import Sandbox, describe
from jigsaw_jax.reward.sandbox.exchange import Outcome, SandboxError
from jigsaw_jax.reward.sandbox.limits import limits_of
from jigsaw_jax.reward.score import SCORERS, score


def _reward(**fields):
    return settings.Reward(weights={"code": 1.0}, timeout_s=30.0, **fields)


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox(limits_of(_reward()))
    yield sandbox
    sandbox.close()


@pytest.fixture
def grade(sandbox):
    """Scores a program on tests, and says which reason was noted."""
    if sandbox.standing.missing:
        pytest.skip(describe(sandbox.standing))

    def grade(program, tests, **fields):
        text = f"Let me think.\n```python\n{program}\n```\nThat is it."
        value, notes = score_code(_prompt(tests), text, _reward(**fields), sandbox.run)
        (reason, *more) = [name for name, share in notes.items() if share] or [""]
        assert not more
        return value, reason.removeprefix("code/")

    return grade


def _prompt(tests):
    return Prompt(uid="u", tokens=(), text="p", answer=json.dumps(tests), task="code")


SQUARES = {"inputs": ["2\n", "-3\n"], "outputs": ["4\n", "9"]}
CALLS = {"fn_name": "f", "inputs": [[2], [3]], "outputs": [4, [9]]}
ASSERTS = ["assert f(2) == 4", "assert f(3) == 9"]
SQUARE = "def f(x): return x * x"


def test_a_program_that_passes_every_test_has_one(grade):
    assert grade("print(int(input()) ** 2)", SQUARES) == (1.0, "")
    assert grade(SQUARE, CALLS) == (1.0, "")
    assert grade("class Solution:\n  def f(self, x): return x * x", CALLS)[0] == 1.0
    assert grade(SQUARE, ASSERTS) == (1.0, "")


def test_arguments_arrive_as_they_are_in_json(grade):
    given = [[1, [2.5, None, True, "'\\n\u00e9"], {"a": {}}], list(range(200_000))]
    tests = {"fn_name": "f", "inputs": [given], "outputs": [[*given[0], 200_000]]}
    assert grade("def f(x, y): return x + [len(y)]", tests) == (1.0, "")


def test_one_wrong_answer_is_zero_or_leaves_a_share(grade):
    program = "print(2 * int(input()))"
    assert grade(program, SQUARES) == (0.0, "wrong")
    assert grade(program, SQUARES, code_score="fraction") == (0.5, "wrong")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("1 / 0", "crash"),
        ("print(4", "crash"),
        ("print(int(input()) ** 2); raise SystemExit(3)", "crash"),
        ("import time; time.sleep(60)", "slow"),
        ("while True: print('4')", "flood"),
        ("import os; os._exit(0)", "wrong"),
        ("exit(0)", "wrong"),
    ],
)
def test_what_a_program_does_wrong_is_zero_and_noted(grade, program, reason):
    wall_s = 0.3 if reason == "slow" else 10.0
    assert grade(program, SQUARES, code_wall_s=wall_s) == (0.0, reason)


FORGERIES = [
    "import os; os._exit(0)",
    "raise SystemExit(0)",
    "print('passed'); print('True'); print('1.0'); print('{\"outcome\": 1}')",
    "import os\nfor n in range(32):\n  try: os.write(n, b'true')\n"
    "  except OSError: pass",
    "class Yes:\n  def __eq__(self, other): return True\n  __hash__ = object.__hash__\n"
    "def f(x): return Yes()",
    "class Yes(int):\n  def __eq__(self, other): return True\ndef f(x): return Yes()",
    "import json\njson.dump = lambda value, file: file.write('true')\n"
    "def f(x): return True",
    "import builtins, ast\nbuiltins.isinstance = lambda *_: True\n"
    "def f(x): return object()",
    "import sys\nsys.modules['__main__'].encode = lambda value: True\n"
    "def f(x): return 1",
    "import sys\n"
    "def f(x):\n"
    "  frame = sys._getframe()\n"
    "  seen = []\n"
    "  while frame:\n"
    "    seen += [v for v in [*frame.f_locals.values()] if type(v) in (int, list)]\n"
    "    frame = frame.f_back\n"
    "  return next((v for v in seen if v in (4, 9, [9])), None)",
    "import gc\n"
    "def f(x):\n"
    "  for item in gc.get_objects():\n"
    "    if isinstance(item, dict) and 'outputs' in item: return item['outputs'][0]",
    "def f(x):\n"
    "  import glob\n"
    "  for path in glob.glob('/**/*.jsonl', recursive=True): return 4",
]


@pytest.mark.parametrize("program", FORGERIES)
def test_a_verdict_cant_be_forged_or_read(grade, program):
    assert grade(program, CALLS)[0] == 0.0
    assert grade(program, ASSERTS)[0] == 0.0
    assert grade(program, SQUARES)[0] == 0.0


def test_no_expected_answer_is_in_what_a_program_is_given():
    for tests in (
        {"inputs": ["in"], "outputs": ["SECRET"]},
        {"fn_name": "f", "inputs": [["in"]], "outputs": ["SECRET"]},
        ["assert f('in') == 'SECRET'", "assert 'SECRET' == f('in')"],
        ["x = f('in')\nassert x == {'SECRET': 1}\nassert x is None"],
        ["import math\nassert math.isclose(f('in'), 1234567.25, rel_tol=1e-3)"],
    ):
        for test in parse_tests(json.dumps(tests), trusts_asserts=False):
            given = f"{test.stdin}{test.statements}{test.expression}"
            assert "in" in given or "x" in given
            assert "SECRET" not in given
            assert "1234567" not in given


@pytest.mark.parametrize(
    ("text", "statements", "expression"),
    [
        ("assert f(2) == 4", "", "f(2)"),
        ("assert 4 == f(2), 'no'", "", "f(2)"),
        ("s = S()\ns.push(1)\nassert s.pop() == -1", "s = S()\ns.push(1)", "s.pop()"),
        ("assert set(f(1)) == set([1, 2])", "", "set(f(1))"),
        ("assert f(1) is None", "", "f(1)"),
        ("assert is_prime(7)", "", "not not is_prime(7)"),
        ("assert not s.is_open(7)", "", "not s.is_open(7)"),
        ("assert f(1) == True", "", "f(1)"),
        ("assert isclose(f(2), 0.5)", "", "f(2)"),
    ],
)
def test_an_assert_is_split_into_question_and_answer(text, statements, expression):
    (test,) = parse_tests(json.dumps([text]), trusts_asserts=False)
    assert (test.statements, test.expression) == (statements, expression)


def test_the_parts_of_an_assert_judge_as_it_would():
    def judged(text, encoded):
        (test,) = parse_tests(json.dumps([text]), trusts_asserts=False)
        return test.judge(json.dumps(encoded))

    assert judged("assert p(7)", True)
    assert not judged("assert p(7)", False)
    assert not judged("assert p(7)", ["int", 1])
    assert judged("assert not p(7)", True)
    assert not judged("assert not p(7)", False)
    assert not judged("assert not p(7)", None)
    assert judged("assert f() is None", None)
    assert judged(
        "assert f(1) == (1, {2})", ["tuple", [["int", 1], ["set", [["int", 2]]]]]
    )
    assert judged("assert math.isclose(f(1), 2.0, abs_tol=0.5)", ["float", 2.4])
    assert not judged("assert math.isclose(f(1), 2.0, abs_tol=0.5)", ["float", 2.6])


def test_anything_can_be_true_or_not(grade):
    tests = ["assert f('7')", "assert not f('x')"]
    assert grade("import re\ndef f(x): return re.match('[0-9]', x)", tests)[0] == 1.0
    assert grade("def f(x): return x", tests) == (0.0, "wrong")


UNSPLIT = [
    "def check(g):\n  assert g(2) == 4\ncheck(f)",
    "assert f(2) == g(2)",
    "assert isinstance(f(2), int)",
    "assert (f(2) == 4) == True",
    "assert all([f(2) == 4])",
    "import helper\nassert helper(f(2), 4)",
    "assert same(f(2), 4)",
    "assert isclose(f(2), g(2))",
    "assert f(2) > 3",
    "assert f(2) == 4 and f(3) == 9",
    "f(2)",
]


@pytest.mark.parametrize("text", UNSPLIT)
def test_an_assert_that_cant_be_split_is_refused_unless_trusted(text):
    with pytest.raises(ValueError, match=r"Reward\.code_trusts_asserts = True"):
        parse_tests(json.dumps([text]), trusts_asserts=False)
    (test,) = parse_tests(json.dumps([text]), trusts_asserts=True)
    assert test.statements == text


def test_a_trusted_assert_runs_inside_and_a_program_can_forge_it(grade):
    check = ["def check(g):\n  assert g(2) == 4\ncheck(f)"]
    assert grade(SQUARE, check, code_trusts_asserts=True) == (1.0, "")
    assert grade("def f(x): return x", check, code_trusts_asserts=True)[0] == 0.0
    # What the documentation warns of.
    assert grade(FORGERIES[4], check, code_trusts_asserts=True)[0] == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "7",
        "",
        "[]",
        "{}",
        "null",
        "[1]",
        '{"inputs": ["1"], "outputs": []}',
        '{"inputs": [], "outputs": []}',
        '{"inputs": [1], "outputs": ["1"]}',
        '{"fn_name": "f", "inputs": [1], "outputs": [1]}',
        '{"fn_name": "f(); g", "inputs": [[1]], "outputs": [1]}',
        '{"fn_name": "class", "inputs": [[1]], "outputs": [1]}',
        '{"fn_name": "f", "inputs": [[NaN]], "outputs": [1]}',
        '["assert ("]',
        "[" * 100_000,
    ],
)
def test_an_answer_that_is_no_tests_is_an_error_and_no_zero(answer):
    with pytest.raises(ValueError, match="must be"):
        parse_tests(answer, trusts_asserts=False)


@pytest.mark.parametrize(
    ("output", "is_same"),
    [
        ("1 2\n3\n", True),
        ("1 2 \r\n3", True),
        ("1 2\n3\n\n \n", True),
        ("1  2\n3", False),
        ("1 2 3", False),
        ("\n1 2\n3", False),
        ("1 2\n3\n4", False),
        ("1 2\n3\x00", False),
        ("\xff", False),
        ("", False),
    ],
)
def test_lines_are_compared_but_for_space_at_their_ends(output, is_same):
    tests = json.dumps({"inputs": [""], "outputs": ["1 2\n3"]})
    (test,) = parse_tests(tests, trusts_asserts=False)
    assert test.judge(output) is is_same


def test_output_is_compared_as_utf_8(grade):
    tests = {"inputs": ["\u00e9\n"], "outputs": ["\u00e9\u4e2d"]}
    assert grade("print(input() + '\\u4e2d')", tests) == (1.0, "")


def test_all_tests_of_a_completion_share_its_time():
    ran = []

    def run(program):
        ran.append(program.wall_s)
        return Outcome(ending="exit", code=0, output="4", wall_s=4.0)

    tests = {"inputs": [""] * 5, "outputs": ["4"] * 5}
    text = "```\nx\n```"
    value, notes = score_code(_prompt(tests), text, _reward(code_score="fraction"), run)
    assert ran == [10.0, 6.0, 2.0]
    assert value == 3 / 5
    assert notes["code/slow"] == 1.0
    # The last test may use up what is left.
    tests = {"inputs": [""] * 3, "outputs": ["4"] * 3}
    assert score_code(_prompt(tests), text, _reward(), run)[0] == 1.0


def test_a_text_without_a_program_is_zero_and_runs_nothing():
    def run(program):
        raise AssertionError(program)

    value, notes = score_code(_prompt(SQUARES), "print(4)", _reward(), run)
    assert value == 0.0
    assert notes["code/none"] == 1.0


def test_a_failed_sandbox_is_missing_and_not_zero(monkeypatch):
    def fail(*_):
        raise SandboxError("no room")

    monkeypatch.setitem(SCORERS, "code", fail)
    result = score(_prompt(SQUARES), "x", _reward())
    assert result.value is None
    assert result.failure == "error: code: SandboxError: no room"


def test_the_limits_fit_into_the_pools():
    with pytest.raises(ValueError, match=r"at least Reward.code_wall_s \+ 10 = 20"):
        settings.Reward(weights={"code": 1.0})
    with pytest.raises(ValueError, match="must be at least 1"):
        _reward(processes=0)
    with pytest.raises(ValueError, match="could read the tests"):
        _reward(allow_executing_scorers=True)


def test_the_pool_scores_programs_and_gives_a_loop_zero(sandbox):
    if sandbox.standing.missing:
        pytest.skip(describe(sandbox.standing))
    pool = RewardPool(_reward(code_wall_s=1.0))
    scores = queue.Queue()
    programs = ["print(int(input()) ** 2)", "while True: pass", "print(5)"]
    try:
        for number, program in enumerate(programs):
            pool.submit(
                _prompt(SQUARES),
                f"```python\n{program}\n```",
                lambda score, number=number: scores.put((number, score)),
            )
        results = dict(scores.get(timeout=60) for _ in programs)
    finally:
        pool.close()
    assert [results[n].value for n in range(3)] == [1.0, 0.0, 0.0]
    assert results[1].parts["code/slow"] == 1.0
    assert (pool.timeouts, pool.crashes) == (0, 0)
