import collections
import json
import math

import pytest

from jigsaw_jax.reward.code_value import decode, equals, number
from jigsaw_jax.reward.sandbox.inside import encode


def _equals(found, expected, is_json=False):
    return equals(json.loads(json.dumps(encode(found))), expected, is_json=is_json)


VALUES = [
    None,
    True,
    False,
    2,
    -(10**40),
    0.5,
    math.inf,
    "",
    "\u00e9\ud800\x00",
    [],
    [1, [2, [3]]],
    (1, "a"),
    (),
    {1, 2},
    frozenset({(1, 2), (3, "x")}),
    {},
    {"a": [1], 2: (None, {0.5})},
    {(1, 2): {3: {}}},
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_equals_itself_and_no_other(value):
    for other in VALUES:
        # Python's own == is the reference, and True == 1 is not among the pairs.
        assert _equals(value, other) == (value == other)


def test_subclasses_are_what_they_are_made_of():
    Point = collections.namedtuple("Point", "x y")
    assert _equals(Point(1, 2), (1, 2))
    assert _equals(collections.Counter("aab"), {"a": 2, "b": 1})

    class Yes(int):
        def __eq__(self, other):
            return True

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    assert not _equals(Yes(3), 4)
    assert _equals(Yes(3), 3)
    with pytest.raises(TypeError, match="builtin value"):
        encode(object())


def test_numbers_are_equal_as_in_python_but_for_the_last_digits():
    assert _equals(0.1 + 0.2, 0.3)
    assert _equals(3.0, 3)
    assert _equals(True, 1)
    assert _equals(1, True)
    assert not _equals(0.3001, 0.3)
    assert not _equals(10**40 + 1, 10**40)
    assert not _equals(math.nan, math.nan)
    assert not _equals(10**400, 0.5)
    assert not _equals("3", 3)


def test_json_has_lists_text_keys_and_true_apart_from_one():
    assert _equals((1, (2,)), [1, [2]], is_json=True)
    assert _equals({1: "a", None: "b"}, {"1": "a", "null": "b"}, is_json=True)
    assert not _equals({1, 2}, [1, 2], is_json=True)
    assert not _equals(True, 1, is_json=True)
    assert not _equals(1, True, is_json=True)
    assert not _equals((1,), [1])


@pytest.mark.parametrize(
    "found",
    [
        {},
        7,
        "str",
        [],
        ["int"],
        ["int", "7"],
        ["int", None],
        ["int", True],
        ["list", 7],
        ["list", {"0": 1}],
        ["set", [["list", []]]],
        ["set", [["int", 1], ["int", 1]]],
        ["dict", [["int", 1], []]],
        ["dict", [[["int", 1]], [["int", 1]]]],
        ["dict", [[["int", 1], ["int", 1]], [["int", 1], ["int", 1]]]],
        ["object", "x"],
        [["int"], 7],
    ],
    ids=repr,
)
def test_what_no_encoder_wrote_equals_nothing(found):
    for expected in (7, "7", [7], {1, 2}, {1: 1, 2: 2}, None, True):
        for is_json in (False, True):
            assert not equals(found, expected, is_json=is_json)


@pytest.mark.parametrize(
    "output", ["", "passed", "[" * 100_000, "9" * 10_000, "[1] [2]", "\xff", "{"]
)
def test_output_that_is_no_one_value_decodes_to_none(output):
    assert decode(output) is None


def test_only_numbers_are_numbers():
    assert number(["int", 3]) == 3
    assert number(["float", 0.5]) == 0.5
    assert number(["str", "3"]) is None
    assert number(True) is None
