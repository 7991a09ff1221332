"""The system calls of Linux that Python lacks, each raising OSError with its name."""

import ctypes
import os

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_BIND = 0x1000
MS_NOSUID = 2
MS_NODEV = 4
_MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

# The same number on every architecture.
_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_ATTR_RDONLY_NOSUID_NODEV = 1 | 2 | 4

_LIBC = ctypes.CDLL(None, use_errno=True)


def call(what: str, number: int, *arguments: int | ctypes.Array | None) -> int:
    """A system call by number.

    Args:
      what: its name, for the error.
      number: of the architecture.
      *arguments: numbers, buffers or None.

    Returns:
      What it returned.

    Raises:
      OSError: it failed.
    """
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(what, _LIBC.syscall(ctypes.c_long(number), *words))


def prctl(what: str, option: int, *arguments: int | ctypes.Array) -> None:
    """Change one property of this process; `what` names it in an error."""
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    zeros = [ctypes.c_ulong(0)] * (4 - len(words))
    _checked(what, _LIBC.prctl(option, *words, *zeros))


def unshare(flags: int) -> None:
    """Leave the namespaces of the flags for new ones."""
    _checked("unshare", _LIBC.unshare(flags))


def mount(source: str, target: str, *, flags: int, kind: str, data: str = "") -> None:
    """Mount a file system, or bind what is there already."""
    texts = [text.encode() for text in (source, target, kind)]
    result = _LIBC.mount(*texts, ctypes.c_ulong(flags), data.encode())
    _checked(f"mount {kind or source}", result)


def make_tree_read_only(path: str) -> None:
    """No writing, set-user-ID or device on any mount at `path` or below it."""
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY_NOSUID_NODEV, 0, 0, 0)
    call(
        "mount_setattr",
        _MOUNT_SETATTR,
        _AT_FDCWD,
        ctypes.create_string_buffer(path.encode()),
        _AT_RECURSIVE,
        attributes,
        ctypes.sizeof(attributes),
    )


def move_root_here() -> None:
    """Make the working directory the root, and let go of the old root."""
    _checked("pivot_root", _LIBC.pivot_root(b".", b"."))
    _checked("umount2", _LIBC.umount2(b".", _MNT_DETACH))


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
