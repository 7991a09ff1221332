"""Where a worker's intervals go: the event log, or a message to whoever has it."""

from typing import Any, Protocol, runtime_checkable

from jigsaw_jax.records import SampleId

# What is said of a sample that had a slot, as `log_sample` has it.
SAMPLE_FIELDS = ("worker", "uid", "draw", "sample", "num_tokens", "version", "finish")


@runtime_checkable
class Intervals(Protocol):
    """Takes what a part of the pipeline did and when, from any thread."""

    def interval(
        self, track: str, name: str, start_s: float, end_s: float, **fields: Any
    ) -> None:
        """Record that `track` did `name` from `start_s` to `end_s`."""
        ...


class Silent:
    """Takes intervals and lets them go: another host of the slice logs the same."""

    def interval(
        self, track: str, name: str, start_s: float, end_s: float, **fields: Any
    ) -> None:
        """Let it go."""


def log_sample(
    journal: Intervals,
    slot: str,
    span_s: tuple[float, float],
    *,
    sample_id: SampleId,
    num_tokens: int,
    version: int,
    finish: str,
    **fields: Any,
) -> None:
    """Record that a sample had a slot.

    Args:
      journal: takes it.
      slot: which.
      span_s: from when to when.
      sample_id: of the sample.
      num_tokens: sampled.
      version: the oldest of its tokens.
      finish: why it ended.
      **fields: what else to say.
    """
    uid, draw, sample = sample_id
    journal.interval(
        f"slot/{slot}",
        "sample",
        *span_s,
        **fields,
        uid=uid,
        draw=draw,
        sample=sample,
        num_tokens=num_tokens,
        version=version,
        finish=finish,
    )
