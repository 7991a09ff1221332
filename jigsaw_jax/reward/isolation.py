"""What a worker may no longer do once it has loaded: a second fence around a verifier.

The first fence is that the worker is another process, which the pool kills. This one
stops the usual damage: an audit hook, which cannot be taken out again, refuses to write
files, start processes, send signals and open sockets. It is no sandbox against native
code; the scorers that execute answers stay off unless the user allows them.
"""

import os
import resource
import sys
from typing import Any

MEMORY_BYTES = 2 << 30

_REFUSED = frozenset(
    {
        "os.chmod",
        "os.chown",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
        "os.link",
        "os.mkdir",
        "os.posix_spawn",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.spawn",
        "os.symlink",
        "os.system",
        "os.truncate",
        "os.utime",
        "pty.spawn",
        "socket.__new__",
        "subprocess.Popen",
    }
)
_REFUSED_PREFIXES = ("ctypes.", "shutil.")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def isolate() -> None:
    """Give up writing, spawning, the network and more memory, for good."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # No imported module may be written to disk, since that is refused now.
    sys.dont_write_bytecode = True
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        _, mode, flags = arguments
        is_write = flags & _WRITES if isinstance(flags, int) else False
        if not is_write and not (isinstance(mode, str) and set(mode) & set("wax+")):
            return
    elif event not in _REFUSED and not event.startswith(_REFUSED_PREFIXES):
        return
    raise PermissionError(f"a reward worker may not do {event}")
