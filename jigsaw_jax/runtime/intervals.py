"""Where a worker's intervals go: the event log, or a message to whoever has it."""

from typing import Any, Protocol, runtime_checkable


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
