"""A completion as a buffer: a head, then columns of int32 and float32.

Logprobs are float32 where they are made, so they come back bit for bit.
"""

import struct
from typing import Any

import numpy as np

from jigsaw_jax.records import FinishReason, Sample, SampleId, Segment
from jigsaw_jax.runtime import wire

_HEAD = struct.Struct("<4sI")
_MAGIC = b"JGS1"
HEAD_BYTES_MAX = 1 << 20
_TOKEN = np.dtype("<i4")
_REAL = np.dtype("<f4")


def sample_bytes(sample: Sample) -> bytes:
    """One completion as a buffer."""
    segments = [[s.is_sampled, len(s.tokens)] for s in sample.segments]
    head = [*sample.id, sample.attempt, sample.finish_reason.value]
    head_bytes = wire.to_bytes([*head, segments, len(sample.entropies)])
    parts = [_HEAD.pack(_MAGIC, len(head_bytes)), head_bytes]
    for segment in sample.segments:
        parts.append(np.asarray(segment.tokens, _TOKEN).tobytes())
        if segment.is_sampled:
            parts.append(np.asarray(segment.logprobs, _REAL).tobytes())
            parts.append(np.asarray(segment.versions, _TOKEN).tobytes())
    parts.append(np.asarray(sample.entropies, _REAL).tobytes())
    return b"".join(parts)


def read_sample(buffer: bytes | memoryview) -> Sample:
    """The completion that `sample_bytes` wrote.

    Args:
      buffer: all of it and nothing more.

    Returns:
      The completion.

    Raises:
      WireError: anything is missing, left over or of another type.
    """
    view = memoryview(buffer).cast("B")
    if len(view) < _HEAD.size:
        raise wire.WireError(f"completion must have a head, got {len(view)} bytes")
    magic, length = _HEAD.unpack_from(view)
    if magic != _MAGIC or length > min(HEAD_BYTES_MAX, len(view) - _HEAD.size):
        raise wire.WireError(f"completion must begin with {_MAGIC!r}, got {magic!r}")
    end = _HEAD.size + length
    values = wire.from_bytes(bytes(view[_HEAD.size : end]))
    uid, draw, index, attempt, finish, spans, num_entropies = wire.read_list(values, 7)
    columns = _Columns(view[end:])
    segments = tuple(
        columns.segment(*wire.read_list(span, 2)) for span in wire.read_list(spans)
    )
    entropies = columns.take(num_entropies, _REAL)
    columns.finish()
    return Sample(
        id=wire.read(SampleId, [uid, draw, index]),
        attempt=wire.read(int, attempt),
        segments=segments,
        finish_reason=wire.read(FinishReason, finish),
        entropies=entropies,
    )


class _Columns:
    """Takes columns off the front of a buffer."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def take(self, num: Any, dtype: np.dtype) -> tuple:
        size = wire.read(int, num) * dtype.itemsize
        if not 0 <= size <= len(self._view):
            raise wire.WireError(
                f"column must have {size} bytes, got {len(self._view)}"
            )
        column, self._view = self._view[:size], self._view[size:]
        return tuple(np.frombuffer(column, dtype).tolist())

    def segment(self, is_sampled: Any, num: Any) -> Segment:
        tokens = self.take(num, _TOKEN)
        if not wire.read(bool, is_sampled):
            return Segment(tokens=tokens, logprobs=(), versions=(), is_sampled=False)
        logprobs = self.take(num, _REAL)
        return Segment(
            tokens=tokens, logprobs=logprobs, versions=self.take(num, _TOKEN)
        )

    def finish(self) -> None:
        if len(self._view):
            raise wire.WireError(
                f"completion must end here, got {len(self._view)} bytes"
            )
