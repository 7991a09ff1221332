"""The environment variables that worker processes start with."""

import os

from jigsaw_jax.runtime import allocator
from jigsaw_jax.settings import Train

_ALIKE = ("JAX_PLATFORMS", "XLA_FLAGS", "JIGSAW_CACHE_DIR", "JAX_ENABLE_X64")


def leave(train: Train) -> None:
    """Set here what Ray hands down to workers of this machine, before it starts.

    They would take twice as long to start where Ray sets it for each.
    """
    allocator.share_heap_where_small(train)


def of_workers(train: Train, *, is_local: bool) -> dict[str, str]:
    """What a worker must have as this process has it, and what it needs besides.

    Args:
      train: the run.
      is_local: whether Ray was started by this process, behind `leave`.

    Returns:
      Values by name.
    """
    alike = {name: os.environ[name] for name in _ALIKE if name in os.environ}
    return alike if is_local else {**alike, **allocator.environment(train)}
