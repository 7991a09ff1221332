"""Which pieces of isolation hold on this machine, tried and not assumed."""

import contextlib
import dataclasses
import json
import os
import socket
import tempfile
from collections.abc import Iterator

from jigsaw_jax.reward.sandbox import limits
from jigsaw_jax.reward.sandbox.cage import Cage
from jigsaw_jax.reward.sandbox.exchange import Program, SandboxError, Standing
from jigsaw_jax.reward.sandbox.execution import execute

_WALL_S = 8.0
# Files first: with them comes an interpreter that every user may read. The filter goes
# before the network, which without it lacks nothing but AF_VSOCK.
_ORDER = ("files", "seccomp", "landlock", "limits", "network", "processes")

# Each attempt must fail; what it reports is whether it did.
_ATTEMPTS = """
import json, os, socket, sys

at = json.load(sys.stdin)

def fails(attempt):
    try:
        attempt()
    except (OSError, MemoryError):
        return True
    return False

def fork_too_many():
    hold, release = os.pipe()
    children = []
    try:
        for _ in range(at["processes"]):
            child = os.fork()
            if not child:
                os.close(release)
                os.read(hold, 1)
                os._exit(0)
            children.append(child)
    finally:
        os.close(release)
        for child in children:
            os.waitpid(child, 0)

def write_too_much():
    with open("big", "wb", buffering=0) as file:
        for _ in range(2):
            if file.write(bytes(at["file_bytes"])) < at["file_bytes"]:
                raise OSError

facts = {
    "limits": [
        fails(fork_too_many),
        fails(lambda: bytearray(at["memory_bytes"])),
        fails(write_too_much),
    ],
    "network": [
        fails(lambda: socket.create_connection(("127.0.0.1", at["port"]), 1)),
        fails(lambda: socket.create_connection(("192.0.2.1", 9), 0.05)),
        fails(lambda: socket.socket(getattr(socket, "AF_VSOCK", -1))),
    ],
    "files": [
        fails(lambda: open("/etc/passwd")),
        fails(lambda: open(at["outside"])),
        fails(lambda: open(os.path.dirname(at["outside"]) + "/new", "w")),
        fails(lambda: os.mkdir("/new")),
        fails(lambda: os.listdir("/proc")),
    ],
    "processes": [
        os.getppid() == 1,
        fails(lambda: os.kill(at["warden"], 0)),
    ],
    "seccomp": [fails(lambda: socket.socket(socket.AF_UNIX))],
}
print(json.dumps(facts))
"""


def probe(cage: Cage) -> Standing:
    """Try all pieces at once and, where one fails, one on top of another.

    Args:
      cage: its pieces are ignored.

    Returns:
      The pieces that a program of these limits can be kept with.
    """
    failures = _failures(cage, frozenset(limits.PIECES))
    if failures:
        failures = _one_by_one(cage)
    held = tuple(piece for piece in limits.PIECES if piece not in failures)
    return Standing(held=held, missing=failures)


def _one_by_one(cage: Cage) -> dict[str, str]:
    held: frozenset[str] = frozenset()
    failures = {}
    for piece in _ORDER:
        why = _failures(cage, held | {piece}).get(piece)
        if why is None:
            held |= {piece}
        else:
            failures[piece] = why
    return failures


def _failures(cage: Cage, pieces: frozenset[str]) -> dict[str, str]:
    """Of the pieces, those that do not hold, and why."""
    cage = dataclasses.replace(cage, pieces=pieces)
    with _surroundings(cage) as places:
        program = Program(source=_ATTEMPTS, stdin=places, wall_s=_WALL_S)
        try:
            outcome = execute(program, cage)
        except SandboxError as error:
            return dict.fromkeys(pieces, str(error))
    try:
        facts = json.loads(outcome.output)
    except ValueError:
        why = f"a program in it ended with code {outcome.code} ({outcome.ending})"
        return dict.fromkeys(pieces, why)
    return {
        piece: "it has no effect here"
        for piece in pieces
        if not all(facts.get(piece, ()))
    }


@contextlib.contextmanager
def _surroundings(cage: Cage) -> Iterator[str]:
    """A port, a process and a file that a program must not reach, as JSON."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        tempfile.TemporaryDirectory(prefix="jigsaw-probe-") as outside,
    ):
        os.chmod(outside, 0o777)
        path = os.path.join(outside, "file")
        with open(path, "w", encoding="ascii") as file:
            file.write("outside")
        yield json.dumps(
            {
                "port": server.getsockname()[1],
                "warden": os.getpid(),
                "outside": path,
                "processes": cage.limits.processes,
                "memory_bytes": cage.limits.memory_bytes,
                "file_bytes": cage.limits.file_bytes,
            }
        )
