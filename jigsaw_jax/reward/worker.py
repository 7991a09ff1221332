"""A reward worker: scores what comes in on stdin until stdin ends.

    python -m jigsaw_jax.reward.worker

The first frame in is the reward's settings, and the first out says "ready", or what was
refused. Then comes one frame for each batch, and one back for each score of it, in
order. The worker ends with its parent: stdin ends then, and an alarm of the kernel ends
it even in a score that never returns.
"""

import signal
import sys

from jigsaw_jax.reward import frame
from jigsaw_jax.reward.isolation import isolate
from jigsaw_jax.reward.sandbox.client import IsolationError
from jigsaw_jax.reward.score import preload, score
from jigsaw_jax.settings import Reward

# The pool kills at the limit itself; the alarm is for a pool that is no more.
ALARM_FACTOR = 2.0


def main() -> None:
    """Serve until stdin ends."""
    source, sink = frame.private_pipes()
    settings = frame.read(source)
    if settings is None:
        return
    reward = Reward(**settings)
    try:
        preload(reward)
    except IsolationError as error:
        frame.write(sink, {"refused": str(error)})
        return
    isolate()
    frame.write(sink, "ready")
    while (batch := frame.read(source)) is not None:
        for fields, text in batch:
            signal.setitimer(signal.ITIMER_REAL, ALARM_FACTOR * reward.timeout_s)
            result = score(frame.prompt_of(fields), text, reward)
            signal.setitimer(signal.ITIMER_REAL, 0)
            frame.write(sink, frame.score_fields(result))


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        # The parent is gone; nobody is left to answer.
        sys.exit(0)
