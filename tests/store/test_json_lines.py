import json
import math
import pathlib

import numpy as np

from jigsaw_jax.store.json_lines import encode_lines


def read(values):
    return [json.loads(line) for line in encode_lines(values).splitlines()]


def test_each_value_is_a_line_as_json_has_it():
    values = [
        {"text": 'quo"te\n\u2028ü', "numbers": [1, -2.5, 1e-300, 2**70], "flag": True},
        {"nothing": None, "nested": {"a": [(1, 2)]}},
    ]
    assert read(values) == json.loads(json.dumps(values))
    assert encode_lines([]) == b""


def test_what_json_has_no_word_for_is_a_number_null_or_its_text():
    path = pathlib.Path("a/b")
    values = [np.float32(0.5), np.int64(3), math.nan, -math.inf, path]
    assert read([values]) == [[0.5, 3, None, None, str(path)]]


def test_half_of_a_surrogate_pair_is_spelled_and_its_neighbours_are_as_ever():
    values = [{"a": math.nan}, {"row": "half \ud800", "path": pathlib.Path("p")}]
    assert read(values) == [{"a": None}, {"row": "half \ud800", "path": "p"}]
