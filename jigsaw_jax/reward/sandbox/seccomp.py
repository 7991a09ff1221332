"""A filter of system calls: no sockets, and none of the kernel's riskier corners.

Network namespaces do not hold AF_VSOCK, the sockets between a virtual machine and its
host, so the call that makes a socket is refused whatever its family is.
"""

import ctypes
import errno
import os
import struct

from jigsaw_jax.reward.sandbox import kernel

# Where the two architectures have numbers of their own: x86_64, aarch64.
_REFUSED = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "mount": (165, 40),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "shmget": (29, 194),
    "socket": (41, 198),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
# io_uring_setup, pidfd_getfd and memfd_secret have one number everywhere.
_REFUSED_EVERYWHERE = (425, 438, 447)
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
# Numbers from here on are x86_64's second table, and none of aarch64.
_SECOND_TABLE = 0x4000_0000

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_MODE_FILTER = 2


def restrict() -> None:
    """Refuse the calls to this process and all that it starts, for good.

    Raises:
      OSError: the kernel takes no filter, or the machine is of another kind.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"seccomp: unknown machine {machine}")
    column, architecture = _MACHINES[machine]
    refused = [numbers[column] for numbers in _REFUSED.values()]
    steps = _steps([*refused, *_REFUSED_EVERYWHERE], architecture)
    code = ctypes.create_string_buffer(b"".join(steps))
    packed = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    program = ctypes.create_string_buffer(packed, len(packed))
    kernel.prctl("seccomp", kernel.PR_SET_SECCOMP, _MODE_FILTER, program)


def _steps(refused: list[int], architecture: int) -> list[bytes]:
    """The filter's instructions; a jump counts the steps that it leaves out."""
    left = len(refused)
    steps = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, architecture, yes=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
        _step(_AT_LEAST, _SECOND_TABLE, yes=left + 1),
    ]
    steps += [
        _step(_EQUAL, number, yes=left - index) for index, number in enumerate(refused)
    ]
    return [*steps, _step(_RETURN, _ALLOW), _step(_RETURN, _ERROR | errno.EPERM)]


def _step(code: int, value: int, *, yes: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, 0, value)
