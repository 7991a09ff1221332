"""Tests of a program as data sets write them: what is asked, and how it is judged.

Only what is asked ever enters the program's process; the expected answer stays here.
"""

import json
import keyword
from typing import Any

from jigsaw_jax.reward.code_asserts import Test, assert_tests, judge_equal


def parse_tests(answer: str, *, trusts_asserts: bool) -> tuple[Test, ...]:
    """The tests of a problem.

    Args:
      answer: JSON, one of {"inputs": [...], "outputs": [...]} (stdin and stdout),
        the same with "fn_name" (arguments and results), and a list of asserts.
      trusts_asserts: take asserts that can't be split.

    Returns:
      One test or more.

    Raises:
      ValueError: it is no such JSON, or an assert can't be split.
    """
    try:
        entry = json.loads(answer, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _unlike(answer) from None
    match entry:
        case {"inputs": list(inputs), "outputs": list(outputs)}:
            if len(inputs) != len(outputs):
                raise _unlike(answer)
            name = entry.get("fn_name")
            pairs = zip(inputs, outputs, strict=True)
            tests = [_pair_test(name, *pair, answer=answer) for pair in pairs]
        case [*texts] if all(isinstance(text, str) for text in texts):
            tests = [
                test
                for text in texts
                for test in assert_tests(text, trusts_asserts=trusts_asserts)
            ]
        case _:
            raise _unlike(answer)
    if not tests:
        raise _unlike(answer)
    return tuple(tests)


def same_lines(output: str, expected: str) -> bool:
    """Equal but for space at the ends of lines and blank lines at the end.

    Args:
      output: what a program wrote, bytes as the first 256 characters: nothing has to
        be decoded.
      expected: text.

    Returns:
      Whether they are the same.
    """
    found = output.encode("latin-1").rstrip().splitlines()
    wanted = expected.encode(errors="replace").rstrip().splitlines()
    return [line.rstrip() for line in found] == [line.rstrip() for line in wanted]


def _refuse(constant: str) -> None:
    raise ValueError(f"NaN and infinity are no JSON, got {constant!r}")


def _unlike(answer: str) -> ValueError:
    return ValueError(
        'answer must be JSON of tests for the reward code, {"inputs": [...], '
        '"outputs": [...]} (with "fn_name" for a function) or a list of asserts, '
        f"got {answer[:80]!r}"
    )


def _pair_test(name: Any, given: Any, expected: Any, *, answer: str) -> Test:
    if name is None:
        if not isinstance(given, str) or not isinstance(expected, str):
            raise _unlike(answer)
        return Test(stdin=given, judge=lambda output: same_lines(output, expected))
    is_name = isinstance(name, str) and name.isidentifier()
    if not is_name or keyword.iskeyword(name) or not isinstance(given, list):
        raise _unlike(answer)
    # One text is compiled at once, where a literal of a million numbers is not.
    arguments = f"*__import__('json').loads({json.dumps(given)!r})"
    call = f"(Solution().{name} if 'Solution' in globals() else {name})({arguments})"
    # Some data sets wrap the result in a list of one, others do not.
    accepted = [expected]
    if isinstance(expected, list) and len(expected) == 1:
        accepted.append(expected[0])
    return Test(
        expression=call,
        judge=judge_equal(*accepted, is_json=True),
    )
