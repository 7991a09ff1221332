"""Makes the C library handle memory as JAX's CPU backend wants it.

A compiled CPU program allocates its scratch space at every call. By default glibc maps
a large block afresh each time, and the system then zeroes it in pages of 4 KiB: a third
of the CPU time of a training step whose scratch space is 300 MB.
"""

import contextlib
import ctypes
import os
import signal
import sys

from jigsaw_jax.settings import Train, sizes

# Bytes of a run's own arrays up to which freed memory is kept.
KEEP_FREED_BELOW = 500_000_000
VARIABLE = "GLIBC_TUNABLES"
OPTION = "glibc.malloc.hugetlb"
ARENAS = "MALLOC_ARENA_MAX"
# Names of mallopt(3), glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
M_ARENA_MAX = -8
LARGEST_INT = 2**31 - 1
# The same, as glibc names them in `VARIABLE`.
KEEPING = {"arena_max": 1, "mmap_max": 0, "trim_threshold": 2**62}


def restart_with_huge_pages() -> None:
    """Begin this process anew with glibc's huge pages, unless it has a choice already.

    glibc reads the option once, when a process starts. Other systems than Linux, and
    other C libraries, are left alone or ignore it.
    """
    chosen = os.environ.get(VARIABLE, "")
    if not sys.platform.startswith("linux") or OPTION in chosen:
        return
    os.environ[VARIABLE] = ":".join(filter(None, (chosen, f"{OPTION}=1")))
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal between the two programs would meet the interpreter's own handler.
    held = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    # Where it cannot start anew it goes on, only slower.
    with contextlib.suppress(OSError):
        os.execv(sys.executable, sys.orig_argv)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def keep_freed_where_small(train: Train) -> None:
    """`keep_freed_memory`, where the run's own arrays are small."""
    if _is_small(train):
        keep_freed_memory()


def environment(train: Train) -> dict[str, str]:
    """What a process that already has threads when it reads the settings starts with.

    Its threads have heaps of their own by then, which hold 64 MiB each: a larger block
    is mapped afresh each time, whatever `keep_freed_memory` asks for, and of every heap
    the most that it ever held stays. A choice of the user's stands.

    Args:
      train: the run; the options are those of `keep_freed_memory`, where it is small.

    Returns:
      Of the environment, what glibc reads when a process starts.
    """
    options = [f"{OPTION}=1"]
    if _is_small(train):
        options += [f"glibc.malloc.{name}={value}" for name, value in KEEPING.items()]
    chosen = [option for option in os.environ.get(VARIABLE, "").split(":") if option]
    taken = {option.partition("=")[0] for option in chosen}
    left = [option for option in options if option.partition("=")[0] not in taken]
    return {VARIABLE: ":".join(chosen + left)}


def share_heap_where_small(train: Train) -> None:
    """Have all threads of processes to come use one heap, where the arrays are small.

    For workers, in which Ray starts threads before `keep_freed_memory` can be called:
    glibc has given each a heap by then, and of every heap the most it ever held stays.
    """
    if _is_small(train):
        os.environ.setdefault(ARENAS, "1")


def _is_small(train: Train) -> bool:
    return sum(sizes.memory_bytes(train).values()) < KEEP_FREED_BELOW


def keep_freed_memory() -> bool:
    """Reuse pages instead of giving them back to the system at each free.

    For runs whose own arrays are small: in a heap that is never given back, large ones
    come to lie between the holes that others left (a run of SmolLM2 held 9 GB of 5).
    Call it before threads start.

    Returns:
      Whether the C library took the options; others than glibc have none of them.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        options = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, LARGEST_INT))
        return all(mallopt(name, value) == 1 for name, value in options)
    return False


def give_back_freed() -> bool:
    """Give pages of freed memory back to the system, wherever in the heap they lie.

    Now and then a small block takes a part of the hole that a large one has left, and
    the next large one makes the heap grow, though half of it is free: ever more
    rarely, but without a bound. Memory that is used again costs 0.5 ms a MB.

    Returns:
      Whether the C library can; others than glibc have no such call.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        return True
    return False
