"""What is told and said of samples: a table for each thing that happens to them.

rows, as they happen -> a table each -> rows, checked
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jigsaw_jax.runtime import wire


class Admitted(NamedTuple):
    """An attempt that a sampler is to begin, or to go on with.

    number: by which it is spoken of from now on.
    uid: of the prompt, which is told with it.
    draw: of the group.
    sample: of the group.
    attempt: which.
    version: that it is admitted under.
    is_resumed: whether it was stopped there and has tokens already.
    """

    number: int
    uid: str
    draw: int
    sample: int
    attempt: int
    version: int
    is_resumed: bool


class Started(NamedTuple):
    """An attempt, by the number that it was given, has a slot."""

    number: int
    now_s: float


class Finished(NamedTuple):
    """A completion is on its way to the depot.

    number: of the attempt.
    place: of the completion, for its key there.
    lane: of the timeline.
    start_s: when it got its slot.
    end_s: when it left it.
    num_tokens: sampled.
    version_min: the oldest that it was sampled with.
    finish: why it ended, as `FinishReason` has it.
    """

    number: int
    place: int
    lane: int
    start_s: float
    end_s: float
    num_tokens: int
    version_min: int
    finish: str


class Scored(NamedTuple):
    """A completion's reward; fields as of a `Score`."""

    number: int
    value: float | None
    parts: dict[str, float | None]
    failure: str | None


# By kind, in the order in which a sample goes through them.
ROWS: dict[str, type] = {"started": Started, "finished": Finished, "scored": Scored}


@runtime_checkable
class Tables(Protocol):
    """Rows of each kind, none of a kind that was not told."""

    started: list[Started]
    finished: list[Finished]
    scored: list[Scored]


read_admitted = wire.rows_reader(Admitted)
# Takes what `wire.to_bytes` makes of rows by kind: read once, and straight to rows. A
# WireError where a kind is not known, or a row not what it should be.
read: Callable[[Any], Tables] = wire.tables_reader(ROWS)
