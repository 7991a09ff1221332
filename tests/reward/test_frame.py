"""What a worker that something took over may say, and what is made of it."""

import struct

import pytest

from jigsaw_jax.records import Score
from jigsaw_jax.reward import frame
from jigsaw_jax.reward.process import WorkerDiedError, WorkerProcess

SCORE = Score(value=0.5, parts={"exact": 1.0, "format": None}, failure=None)


def test_a_score_comes_back_as_it_was():
    assert frame.score_of(frame.unpack(frame.pack(frame.score_fields(SCORE))[4:])) == (
        SCORE
    )
    missing = Score(value=None, failure="error: no")
    assert frame.score_of(frame.score_fields(missing)) == missing


@pytest.mark.parametrize(
    "change",
    [
        {"value": "1"},
        {"value": True},
        {"value": float("nan")},
        {"value": 10**400},
        {"parts": {"exact": float("inf")}},
        {"parts": {"exact": "1"}},
        {"parts": [1.0]},
        {"failure": 3},
        {"more": 1},
    ],
)
def test_what_is_no_score_is_refused(change):
    with pytest.raises(frame.FrameError, match="must be a score"):
        frame.score_of(frame.score_fields(SCORE) | change)


@pytest.mark.parametrize("fields", [None, 3, [0.5, {}, None], {}, {"value": 1.0}])
def test_other_values_are_refused(fields):
    with pytest.raises(frame.FrameError):
        frame.score_of(fields)


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">I", 4) + b"oops",
        struct.pack(">I", 100_000) + b"[" * 100_000,
        struct.pack(">I", 2**32 - 1) + b"{",
    ],
)
def test_a_message_that_is_none_or_has_no_end_is_a_death(said):
    worker = WorkerProcess.__new__(WorkerProcess)
    worker._received = bytearray(said)
    with pytest.raises(WorkerDiedError):
        worker.receive(10.0)
