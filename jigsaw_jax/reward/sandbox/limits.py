"""What a program may use, and the pieces of isolation around it."""

import dataclasses
import resource

from jigsaw_jax.settings import Reward

# Each piece, and what it keeps a program from.
PIECES = {
    "limits": "more processes and memory than it was given",
    "network": "connecting to anything",
    "files": "seeing or changing a file of this machine",
    "processes": "seeing, signalling or outliving another process",
    "landlock": "the same files and connections a second time",
    "seccomp": "sockets of any kind, and the kernel's riskier calls",
}
REQUIRED = ("limits", "network", "files", "processes")
OPEN_FILES = 32
# The supervisor and the first process count as the program's user's.
_OWN_PROCESSES = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one program.

    cpu_s: processor seconds of each process.
    memory_bytes: address space of each process.
    processes: processes and threads at once.
    file_bytes: of one file, and of the working directory.
    output_bytes: of what it writes to stdout.
    """

    cpu_s: int
    memory_bytes: int
    processes: int
    file_bytes: int
    output_bytes: int


def limits_of(reward: Reward) -> Limits:
    """The limits that the settings name."""
    return Limits(
        cpu_s=reward.code_cpu_s,
        memory_bytes=reward.code_memory_mb << 20,
        processes=reward.code_processes,
        file_bytes=reward.code_file_mb << 20,
        output_bytes=reward.code_output_kb << 10,
    )


def apply(limits: Limits) -> None:
    """Limit this process and all that it starts, for good."""
    pairs = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_NPROC: limits.processes + _OWN_PROCESSES,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        # With 0 a core would still go to a program of the host's, with 1 it does not.
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for name, most in pairs.items():
        resource.setrlimit(name, (most, most))
    # The first is a signal that a program can ignore; the second it can't.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
