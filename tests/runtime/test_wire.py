"""What crosses a process border comes back as it was, or not at all."""

import json
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jigsaw_jax.records import (
    AdmitSample,
    FinishReason,
    Prompt,
    SampleId,
    Score,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.settings import Train
from tests.runtime.test_local import make_train


@pytest.mark.parametrize(
    "record",
    [
        AdmitSample(id=SampleId("u", 0, 1), attempt=2, worker="w/1", version=3),
        Prompt(uid="u", tokens=(1, 2), text="é", answer="", task="t"),
        Score(value=None, parts={"a": 1.0, "b": None}, failure="timeout"),
        make_train(),
    ],
)
def test_records_and_settings_come_back_through_bytes(record):
    plain = wire.plain(record)
    told = wire.from_bytes(wire.to_bytes(plain))
    assert wire.read(type(record), told) == record


def test_a_whole_number_where_either_fits_stays_one():
    assert type(wire.read(float | int, 3)) is int
    assert type(wire.read(float, 3)) is float


def test_numbers_that_json_has_not_come_back():
    sent = [math.inf, -math.inf, np.float64(0.1), np.int32(3), 2**64 - 1, -(2**63)]
    assert wire.from_bytes(wire.to_bytes(sent)) == sent
    assert math.isnan(wire.from_bytes(wire.to_bytes(math.nan)))


class Name(str):
    """As a task may have for a name."""

    __slots__ = ()

    def __str__(self):
        return "another"


class Count(int):
    """As a task may have for a number."""


@pytest.mark.parametrize(
    "sent",
    [
        {"run_dir": "/runs/\udcff", "why": ["no such file: \udcff", 1, None, 0.1]},
        # As a reward may be that is a whole number.
        ["scored", 10**300, -(2**63) - 1],
        {"\ud800": (math.inf, np.float32(0.5), True)},
        [Name("u"), Count(3), np.str_("v")],
    ],
)
def test_what_json_carried_and_message_pack_does_not_comes_back_as_it_was(sent):
    found = wire.from_bytes(wire.to_bytes(sent))
    assert found == json.loads(json.dumps(sent, default=np.generic.item))
    told = found if isinstance(found, list) else [*found, *found.values()]
    assert {type(value) for value in told} <= {str, int, float, list}


def test_bytes_may_stand_beside_what_goes_as_json():
    sent = ["prompts", [b"\xff\x00", "\ud800"], {"a": 2**64, "b": b"\x00"}]
    assert wire.from_bytes(wire.to_bytes(sent)) == sent


@pytest.mark.parametrize("value", [object(), 1j, np.zeros(2)])
def test_what_is_not_plain_is_not_sent(value):
    with pytest.raises(TypeError):
        wire.to_bytes([value])


@hypothesis.given(st.binary(max_size=64))
@hypothesis.example(b"\x91" * 100_000)
@hypothesis.example(b"\xd6\xff" + bytes(4))
@hypothesis.example(b"\xd4\x01\x00")
@hypothesis.example(b"\xd4\x01\xff")
@hypothesis.example(b"\xd4\x05\x00")
@hypothesis.example(b"\xc9\x00\x01\x86\xa0\x01" + b"[" * 100_000)
@hypothesis.example(b"\x81\x90\x01")
def test_bytes_that_are_no_message_are_refused(data):
    try:
        value = wire.from_bytes(data)
    except wire.WireError:
        return
    # Whatever it is, it is plain.
    wire.to_bytes(value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, True),
        (int, 1.0),
        (str, 1),
        (SampleId, ["u", 0]),
        (SampleId, ["u", 0, 0, 0]),
        (SampleId, ["u", "0", 0]),
        (tuple[int, ...], 3),
        (tuple[int, ...], [1, "2"]),
        (FinishReason, "never"),
        (Score, {"value": 1.0}),
        (Train, []),
        (int | None, "x"),
        pytest.param(float, 10**400, id="float-more_than_any"),
        (dict[str, float], {1: 2.0}),
        (dict[str, float], {None: 2.0, "a": 1.0}),
        (dict, {b"a": 1}),
    ],
)
def test_a_value_of_another_type_is_refused(hint, value):
    with pytest.raises(wire.WireError):
        wire.read(hint, value)
