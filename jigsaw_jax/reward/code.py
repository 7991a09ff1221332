"""Whether a completion's program passes the problem's tests."""

from collections.abc import Callable

from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.code_tests import Test, parse_tests
from jigsaw_jax.reward.program import extract_program
from jigsaw_jax.reward.sandbox.exchange import Outcome, Program
from jigsaw_jax.settings import Reward

Run = Callable[[Program], Outcome]

# Why a completion does not pass, or "none": it holds no program.
REASONS = ("none", "wrong", "crash", "slow", "flood")


def score_code(
    prompt: Prompt, text: str, reward: Reward, run: Run
) -> tuple[float, dict[str, float]]:
    """The program's score and, as shares of 0 or 1, why a test did not pass.

    Args:
      prompt: whose answer is the tests.
      text: a completion.
      reward: settings.
      run: runs a program where it can do no harm.

    Returns:
      1 where all tests pass, else 0 (with `Reward.code_score` = "fraction" the share
      that passes); and for each of `REASONS` whether it was the first test's that
      failed.

    Raises:
      ValueError: the answer is no tests.
      SandboxError: the sandbox failed, and not the program.
    """
    tests = parse_tests(prompt.answer, trusts_asserts=reward.code_trusts_asserts)
    source = extract_program(text)
    reasons = ["none"]
    if source is not None:
        reasons = _run_all(tests, source, reward, run)
    failed = [reason for reason in reasons if reason]
    share = reasons.count("") / len(tests)
    value = share if reward.code_score == "fraction" else float(share == 1)
    first = failed[0] if failed else ""
    return value, {f"code/{reason}": float(reason == first) for reason in REASONS}


def _run_all(
    tests: tuple[Test, ...], source: str, reward: Reward, run: Run
) -> list[str]:
    """For each test that was run, why it did not pass; "" where it did."""
    left_s = reward.code_wall_s
    reasons = []
    for test in tests:
        outcome = run(
            Program(
                source=source,
                statements=test.statements,
                expression=test.expression,
                stdin=test.stdin,
                wall_s=left_s,
            )
        )
        reasons.append(_reason(test, outcome))
        left_s -= outcome.wall_s
        # What is left can't change the score, or has no time any more.
        if reasons[-1] and (reward.code_score == "all" or left_s <= 0):
            break
        if left_s <= 0:
            reasons.append("slow")
            break
    return reasons[: len(tests)]


def _reason(test: Test, outcome: Outcome) -> str:
    if outcome.ending != "exit":
        return outcome.ending
    if outcome.code:
        return "crash"
    return "" if test.judge(outcome.output) else "wrong"
