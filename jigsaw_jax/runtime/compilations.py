"""Counts programs that XLA compiles, to show that none is after the warm-up."""

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompilationCounter:
    """Counts every compilation of this process from its making on.

    Attributes:
      count: compilations so far; one taken from the persistent cache counts too.
    """

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        self.count += event == _EVENT
