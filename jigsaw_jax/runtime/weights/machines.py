"""Which machine a process is on, as far as it can find others there."""

import functools
import os
import pathlib


@functools.cache
def machine() -> str:
    """Equal for processes that have one clock and see each other's numbers.

    Returns:
      This start of the machine and the process's name space; empty without /proc.
    """
    try:
        start = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{start} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
