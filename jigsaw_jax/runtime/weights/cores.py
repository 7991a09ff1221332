"""How much of a sampler's host a version of weights may take as it comes in."""

import os

THREADS_MAX = 4


def num_threads() -> int:
    """Half of the cores that this process may use; decoding goes on on the others.

    Returns:
      From 1 to 4: more would wait for the memory.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores // 2, THREADS_MAX))
