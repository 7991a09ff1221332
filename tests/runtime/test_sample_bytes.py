"""A completion comes back from its buffer bit for bit, or not at all."""

import dataclasses
import struct

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jigsaw_jax.records import (
    FinishReason,
    Sample,
    SampleId,
    Segment,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.sample_bytes import read_sample, sample_bytes

# Values as the engine has them: of float32, read as Python floats.
REALS = st.floats(width=32, allow_nan=False)
TOKENS = st.integers(0, 2**31 - 1)


# Records are made in the test: what checks their types draws numbers of its own.
SEGMENTS = st.tuples(st.booleans(), st.lists(st.tuples(TOKENS, REALS, TOKENS)))


def segment(is_sampled, rows):
    tokens, logprobs, versions = zip(*rows, strict=True) if rows else ((), (), ())
    if is_sampled:
        return Segment(tokens=tokens, logprobs=logprobs, versions=versions)
    return Segment(tokens=tokens, logprobs=(), versions=(), is_sampled=False)


def sample():
    one = Segment(tokens=(5, 6), logprobs=(-1.5, -0.25), versions=(3, 4))
    return Sample(
        id=SampleId("main/3/0", 1, 2),
        attempt=4,
        segments=(one,),
        finish_reason=FinishReason.STOP,
        entropies=(0.5, 0.75),
    )


@hypothesis.given(
    st.text(),
    st.integers(0, 2**40),
    st.lists(SEGMENTS, max_size=3),
    st.lists(REALS, max_size=4),
    st.sampled_from(FinishReason),
)
def test_a_completion_comes_back_bit_for_bit(uid, attempt, drawn, entropies, finish):
    sent = Sample(
        id=SampleId(uid, 1, 2),
        attempt=attempt,
        segments=tuple(segment(*one) for one in drawn),
        finish_reason=finish,
        entropies=tuple(entropies),
    )
    assert read_sample(sample_bytes(sent)) == sent


def test_a_logprob_of_float32_keeps_every_bit():
    real = float(np.float32(-0.1))
    one = Segment(tokens=(1,), logprobs=(real,), versions=(0,))
    sent = dataclasses.replace(sample(), segments=(one,))
    (got,) = read_sample(sample_bytes(sent)).segments[0].logprobs
    assert struct.pack("<d", got) == struct.pack("<d", real)


@hypothesis.given(st.integers(0, 200), st.binary(max_size=3))
def test_a_buffer_that_is_cut_or_longer_is_refused(length, rest):
    whole = sample_bytes(sample())
    buffer = whole[:length] + rest
    hypothesis.assume(len(buffer) != len(whole))
    with pytest.raises(wire.WireError):
        read_sample(buffer)


@hypothesis.given(st.binary(max_size=64))
def test_bytes_that_are_no_completion_are_refused(data):
    for buffer in (data, b"JGS1" + struct.pack("<I", len(data)) + data):
        with pytest.raises(wire.WireError):
            read_sample(buffer)


def test_a_count_that_no_column_has_is_refused():
    head = wire.to_bytes(["u", 0, 0, 0, "stop", [[True, -1]], 0])
    with pytest.raises(wire.WireError):
        read_sample(b"JGS1" + struct.pack("<I", len(head)) + head)
