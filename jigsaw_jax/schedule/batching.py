"""Which events are best given to one call of `Pipeline.apply`."""

import itertools
from collections.abc import Iterator
from typing import Any

from jigsaw_jax import records

# Reports that come by the hundred, and make one hand-off where they come together.
ON_SAMPLES = frozenset(
    {
        records.SampleStarted,
        records.SampleFinished,
        records.SampleScored,
        records.SamplesReported,
    }
)


def batches(events: list[Any]) -> Iterator[list[Any]]:
    """All of these, in order; neighbours that are best applied at once together."""
    if ON_SAMPLES.issuperset(map(type, events)):
        yield events
        return
    for _, batch in itertools.groupby(events, _key):
        yield list(batch)


def _key(event: object) -> int:
    return 0 if type(event) in ON_SAMPLES else id(event)
