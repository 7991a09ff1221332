"""Where a crew sits: what the control loop that it works for gives it."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.payloads import Payloads
from jigsaw_jax.runtime.progress import Progress
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.settings import Train


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Of one life of the control loop.

    train: the run.
    record: its directory.
    clock: of the run.
    progress: for the person who waits.
    payloads: takes completions, or word of them.
    post: takes events, and what is fatal.
    published: called with (version, start_s, end_s) once every sampler has it.
    """

    train: Train
    record: Record
    clock: Clock
    progress: Progress
    payloads: Payloads
    post: Callable[[Any], None]
    published: Callable[[int, float, float], None]
