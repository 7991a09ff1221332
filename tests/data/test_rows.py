"""Lines of JSON, read as Python's own reader has them."""

import json

import pytest

from jigsaw_jax.data.rows import decoded


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "1 + 1", "answer": 2, "metadata": {"a": [1.5, null, true]}}',
        '{"big": 123456789012345678901234567890, "small": 1e-300, "whole": 1.0}',
        '{"a": 1, "a": 2}',
        '{"text": "\\u00fc \\ud83d\\ude00 \\n"}',
        # What only Python reads.
        '{"a": Infinity}',
        '{"a": 1e400}',
        '{"a": "\\ud800"}',
        '{"a": "\ud800"}',
    ],
)
def test_a_line_is_what_python_reads_of_it(line):
    assert decoded(line) == json.loads(line)
    found, expected = decoded(line), json.loads(line)
    assert list(map(type, found.values())) == list(map(type, expected.values()))


def test_bytes_are_read_as_text_is():
    assert decoded('{"text": "ü"}\n'.encode()) == {"text": "ü"}


@pytest.mark.parametrize("line", ["{", "{'a': 1}", '{"a": 01}', '"a\tb"', "1 2", ""])
def test_what_is_no_json_is_refused_in_python_s_words(line):
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(line)
    with pytest.raises(json.JSONDecodeError) as found:
        decoded(line)
    assert str(found.value) == str(expected.value)
