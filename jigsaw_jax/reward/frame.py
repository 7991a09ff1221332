"""Messages between processes of the rewards: JSON behind a length of four bytes.

JSON and no pickle: what comes out of a worker that ran hostile text must not be able to
run anything here.
"""

import dataclasses
import json
import os
import struct
from typing import IO, Any

from jigsaw_jax.records import Prompt, Score

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size


def pack(message: Any) -> bytes:
    """A message as it goes over the pipe."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """The message of a frame's body."""
    return json.loads(body)


def body_length(header: bytes) -> int:
    """Bytes that follow the four of the header."""
    return _LENGTH.unpack(header)[0]


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


def score_of(fields: dict[str, Any]) -> Score:
    """The inverse of `score_fields`."""
    return Score(**fields)


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
