"""A reward worker: scores what comes in on stdin until stdin ends.

    python -m jigsaw_jax.reward.worker

The first frame in is the reward's settings, and the first out says "ready". Then comes
one frame for each batch, and one back for each score of it, in order. The worker ends
with its parent: stdin ends then, and an alarm of the kernel ends it even in a score
that never returns.
"""

import os
import signal
import sys
from typing import Any, BinaryIO

from jigsaw_jax.reward import frame
from jigsaw_jax.reward.isolation import isolate
from jigsaw_jax.reward.score import preload, score
from jigsaw_jax.settings import Reward

# The pool kills at the limit itself; the alarm is for a pool that is no more.
ALARM_FACTOR = 2.0


def main() -> None:
    """Serve until stdin ends."""
    source, sink = _private_pipes()
    settings = _read(source)
    if settings is None:
        return
    reward = Reward(**settings)
    preload(reward)
    isolate()
    _write(sink, "ready")
    while (batch := _read(source)) is not None:
        for fields, text in batch:
            signal.setitimer(signal.ITIMER_REAL, ALARM_FACTOR * reward.timeout_s)
            result = score(frame.prompt_of(fields), text, reward)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _write(sink, frame.score_fields(result))


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Our end of the pipes, where nothing that a verifier prints or reads can go."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    return source, sink


def _read(source: BinaryIO) -> Any:
    header = source.read(frame.LENGTH_BYTES)
    if len(header) < frame.LENGTH_BYTES:
        return None
    length = frame.body_length(header)
    body = source.read(length)
    return frame.unpack(body) if len(body) == length else None


def _write(sink: BinaryIO, message: Any) -> None:
    sink.write(frame.pack(message))
    sink.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        # The parent is gone; nobody is left to answer.
        sys.exit(0)
