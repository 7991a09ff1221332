"""Memory without a name that several processes of a machine map, and who uses it.

Made by one process and found by others through its descriptor in /proc; gone with the
last process that has it, however that ends. Locks say who uses it, and go with their
processes too.
"""

import fcntl
import functools
import mmap
import os
import subprocess
import sys
import weakref

import numpy as np

_NAME = "jigsaw-weights"
# With these a block keeps its size: nobody's mapping can lose pages.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Block:
    """A block of this process, locked for it alone when it is made.

    Args:
      num_bytes: at least.

    Attributes:
      file: its descriptor.
      inode: its number among the machine's.
      pages: its bytes.

    Raises:
      OSError: there is no such memory here, or not enough.
    """

    def __init__(self, num_bytes: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory files")
        size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.file = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.file)
        # Memory that is short is an error here, and a signal later.
        os.posix_fallocate(self.file, 0, size)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, _SEALS)
        self.inode = os.fstat(self.file).st_ino
        self.pages = np.frombuffer(mmap.mmap(self.file, size), np.uint8)
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def lock(self) -> bool:
        """Have it alone, to write to; False where another process uses it."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let others use it."""
        fcntl.flock(self.file, fcntl.LOCK_UN)


class Blocks:
    """Those of other processes, mapped to read; from any thread.

    Mapping memory costs as much as to read it twice, so mappings are kept as long as
    their block's process has it.
    """

    def __init__(self) -> None:
        self._maps: dict[int, tuple[str, mmap.mmap]] = {}

    def use(self, process: int, file: int, inode: int) -> np.ndarray:
        """Lock a block with others who use it.

        Args:
          process: that made it.
          file: its descriptor there.
          inode: its number.

        Returns:
          Its bytes, locked as long as they are referred to.

        Raises:
          OSError: it is gone, or is being written to.
        """
        path = f"/proc/{process}/fd/{file}"
        lease = _open(path, inode)
        try:
            fcntl.flock(lease, fcntl.LOCK_SH | fcntl.LOCK_NB)
            pages = np.frombuffer(self._map(path, inode), np.uint8)
        except OSError:
            os.close(lease)
            raise
        weakref.finalize(pages, os.close, lease)
        return pages

    def _map(self, path: str, inode: int) -> mmap.mmap:
        known = self._maps.get(inode)
        if known is not None:
            return known[1]
        for number, (at, _) in list(self._maps.items()):
            if _inode(at) != number:
                self._maps.pop(number, None)
        # Of its own: a mapping keeps its descriptor, and with it that one's lock.
        file = _open(path, inode)
        try:
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            mapping = mmap.mmap(file, 0, flags, mmap.PROT_READ)
        finally:
            os.close(file)
        self._maps[inode] = path, mapping
        return mapping


@functools.cache
def can_share() -> bool:
    """Whether another process of this user can open a block: tried, once."""
    try:
        block = Block(1)
        block.unlock()
        opens = [sys.executable, "-ISc", "import sys; open(sys.argv[1]).close()"]
        path = f"/proc/{os.getpid()}/fd/{block.file}"
        done = subprocess.run([*opens, path], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def _open(path: str, inode: int) -> int:
    """Open a block to read, and nothing else."""
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        raise FileNotFoundError(f"{path} is no block")
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    is_sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    if not is_sealed or os.fstat(file).st_ino != inode:
        os.close(file)
        raise FileNotFoundError(f"{path} is another block")
    return file


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1
