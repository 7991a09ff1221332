"""How much of a host a version of weights may take on its way; decoding goes first."""

import os
import threading

THREADS_MAX = 4
# A third of a thread's share of a core, where both want it.
NICENESS = 5


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


def give_way() -> None:
    """Let this thread's work wait where another wants the core.

    On Linux alone, where threads have a niceness each.
    """
    if hasattr(os, "sched_getaffinity"):
        thread = threading.get_native_id()
        own = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(own + NICENESS, 19))
