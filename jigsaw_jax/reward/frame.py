"""Messages between processes of the rewards: JSON behind a length of four bytes.

JSON and no pickle: what comes out of a worker that ran hostile text must not be able to
run anything here. What comes is bounded, and a score is checked field by field.
"""

import dataclasses
import json
import os
import struct
import sys
from typing import IO, Any

from jigsaw_jax.records import Prompt, Score

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size
# A score takes some hundred bytes; its notes and the reason of a failure a few more.
BODY_BYTES_MAX = 16 << 20


class FrameError(ValueError):
    """A message that no worker of ours writes."""


def pack(message: Any) -> bytes:
    """A message as it goes over the pipe."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """The message of a frame's body; a FrameError where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"message must be JSON: {error}") from None


def body_length(header: bytes, most: int | None = None) -> int:
    """Bytes that follow the four of the header; a FrameError above `most`."""
    length = _LENGTH.unpack(header)[0]
    if most is not None and length > most:
        raise FrameError(f"message must have at most {most} bytes, got {length}")
    return length


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """What scoring needs of a prompt; its tokens stay behind."""
    return {
        "uid": prompt.uid,
        "text": prompt.text,
        "answer": prompt.answer,
        "task": prompt.task,
        "metadata": prompt.metadata,
    }


def prompt_of(fields: dict[str, Any]) -> Prompt:
    """The inverse of `prompt_fields`."""
    return Prompt(tokens=(), **fields)


def score_fields(score: Score) -> dict[str, Any]:
    """A score as JSON values."""
    return dataclasses.asdict(score)


def score_of(fields: Any) -> Score:
    """The inverse of `score_fields`.

    Args:
      fields: JSON values.

    Returns:
      The score.

    Raises:
      FrameError: they are no score's: other names, other types, or not finite.
    """
    match fields:
        case {"value": value, "parts": dict(parts), "failure": failure, **others}:
            is_score = not others and all(map(_is_reward, (value, *parts.values())))
            if is_score and isinstance(failure, str | None):
                return Score(value=value, parts=parts, failure=failure)
    raise FrameError(f"message must be a score, got {str(fields)[:80]!r}")


def _is_reward(value: Any) -> bool:
    """None, or a finite number; True is none."""
    if value is None:
        return True
    # An int may be one that no float can hold.
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def private_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Our end of the pipes, where nothing that a verifier prints or reads can go."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    return source, sink


def read(source: IO[bytes]) -> Any:
    """The next message, or None where the other end is gone."""
    header = source.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        return None
    length = body_length(header)
    body = source.read(length)
    return unpack(body) if len(body) == length else None


def write(sink: IO[bytes], message: Any) -> None:
    """Write a whole message."""
    sink.write(pack(message))
    sink.flush()
