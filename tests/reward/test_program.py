import pytest

from jigsaw_jax.reward.program import extract_program


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("So:\n```\nx = 1\n\ny = 2\n```\nDone.", "x = 1\n\ny = 2\n"),
        ("```py\na\n```\nno:\n```python\nb\n```", "b\n"),
        ("```python\na\n```\nprints\n```text\n7\n```", "a\n"),
        ("```python\na\n```\nbetter:\n```python\nb", "a\n"),
        ("  ```Python\n  a\n  ```", "  a\n"),
        ("```python\n```", "\n"),
        ("```python\nprint(1)", None),
        ("print(1)", None),
        ("```bash\nrm -rf /\n```", None),
        ("", None),
    ],
)
def test_the_last_closed_python_block_is_the_program(text, program):
    assert extract_program(text) == program


def test_a_long_completion_takes_linear_time():
    assert extract_program("```\n" * 200_001) == "\n"
