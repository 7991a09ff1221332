"""The files that a program sees: the interpreter and its libraries, read-only."""

import contextlib
import os
import pathlib
import stat
import sys
from collections.abc import Iterable, Iterator

from jigsaw_jax.reward.sandbox import kernel

WORKING_DIRECTORY = "/box"
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_LIBRARIES = ("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")
_LOADER_CACHE = "/etc/ld.so.cache"
# Covered by the new root while that is built; nothing of it is shown.
_STAGE = "/sys"
_ENTRIES_MAX = 1024


def interpreter() -> str:
    """The Python outside of any virtual environment, without links."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def readable() -> tuple[str, ...]:
    """What the interpreter needs; in a virtual environment, that of its base."""
    paths = (*_LIBRARIES, _LOADER_CACHE, sys.base_prefix, interpreter())
    there = [path for path in paths if os.path.lexists(path)]
    # What lies inside another is there with it.
    return tuple(
        path
        for path in dict.fromkeys(there)
        if not any(path.startswith(f"{other}/") for other in there)
    )


def enter(paths: Iterable[str], file_bytes: int) -> None:
    """Leave for a new root in which these files are all there is.

    The mounts belong to this process's own namespace and end with it, the working
    directory included.

    Args:
      paths: the files.
      file_bytes: room in the working directory.

    Raises:
      OSError: the kernel refuses.
    """
    with _held(paths) as held:
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE, kind="")
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("tmpfs", _STAGE, flags=flags, kind="tmpfs", data="mode=0755")
        for path, descriptor in held.items():
            _show(path, descriptor)
        work = _STAGE + WORKING_DIRECTORY
        os.mkdir(work)
        for device in DEVICES:
            _make_file(_STAGE + device)
        kernel.make_tree_read_only(_STAGE)
        room = f"mode=0777,size={file_bytes},nr_inodes={_ENTRIES_MAX}"
        kernel.mount("tmpfs", work, flags=flags, kind="tmpfs", data=room)
        for device in DEVICES:
            kernel.mount(device, _STAGE + device, flags=kernel.MS_BIND, kind="")
    os.chdir(_STAGE)
    kernel.move_root_here()


@contextlib.contextmanager
def _held(paths: Iterable[str]) -> Iterator[dict[str, int]]:
    """Descriptors of the paths, which lead there whatever is mounted above."""
    held = {path: os.open(path, os.O_PATH | os.O_NOFOLLOW) for path in paths}
    try:
        yield held
    finally:
        for descriptor in held.values():
            os.close(descriptor)


def _show(path: str, descriptor: int) -> None:
    target = _STAGE + path
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISLNK(mode):
        pathlib.Path(target).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(os.readlink(path), target)
        return
    if stat.S_ISDIR(mode):
        pathlib.Path(target).mkdir(parents=True, exist_ok=True)
    else:
        _make_file(target)
    source = f"/proc/self/fd/{descriptor}"
    kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC, kind="")


def _make_file(path: str) -> None:
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).touch()
