"""Which events are best given to one call of `Pipeline.apply`."""

from jigsaw_jax import records

# Reports that come by the hundred, and make one hand-off where they come together.
ON_SAMPLES = (records.SampleStarted, records.SampleFinished, records.SampleScored)


def batch_key(event: object) -> int:
    """Equal for neighbours that are best applied at once, for `itertools.groupby`."""
    return 0 if isinstance(event, ON_SAMPLES) else id(event)
