"""Landlock: the kernel's own list of what a process may open; needs no rights.

Source: Documentation/userspace-api/landlock.rst of Linux.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from jigsaw_jax.reward.sandbox import kernel

# The same numbers on every architecture.
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE, _READ, _LIST = (1 << bit for bit in range(4))
_TRUNCATE = 1 << 14
_DEVICES = 1 << 6 | 1 << 11
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE
# Rights to files that a version of the interface knows: the first n bits.
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_NUM_RIGHTS_NOW = 16
_TCP = 0b11
_FOREIGN_SOCKETS_AND_SIGNALS = 0b11


def restrict(
    *, readable: Iterable[str], writable: Iterable[str], directory: str
) -> None:
    """Allow only these paths to this process and all that it starts, for good.

    TCP, abstract sockets and signals to others are refused where the kernel can.

    Args:
      readable: files and directories to read and execute.
      writable: files to read and write, such as /dev/null.
      directory: where everything is allowed but to make devices.

    Raises:
      OSError: the kernel has no Landlock.
    """
    version = kernel.call("landlock", _CREATE_RULESET, None, 0, _ASK_VERSION)
    handled = (1 << _NUM_RIGHTS.get(version, _NUM_RIGHTS_NOW)) - 1
    words = [handled]
    if version >= 4:
        words.append(_TCP)
    if version >= 6:
        words.append(_FOREIGN_SOCKETS_AND_SIGNALS)
    attributes = (ctypes.c_uint64 * len(words))(*words)
    size = ctypes.sizeof(attributes)
    ruleset = kernel.call("landlock", _CREATE_RULESET, attributes, size, 0)
    for path in readable:
        _allow(ruleset, path, _EXECUTE | _READ | _LIST)
    for path in writable:
        _allow(ruleset, path, _READ | _WRITE)
    _allow(ruleset, directory, handled & ~_DEVICES)
    kernel.call("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH)
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    packed = struct.pack("=Qi", rights, descriptor)
    rule = ctypes.create_string_buffer(packed, len(packed))
    kernel.call("landlock_add_rule", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(descriptor)
