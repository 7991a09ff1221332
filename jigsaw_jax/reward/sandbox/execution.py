"""One execution of one program: fork, wait within its limits, kill, clean up."""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator

from jigsaw_jax.reward.sandbox.cage import NOBODY, STARTED, Cage, Pipes, supervise
from jigsaw_jax.reward.sandbox.exchange import Outcome, Program, SandboxError

# Making the cage takes 20 ms; a busy machine may take many times that.
START_S = 8.0
_CHUNK_BYTES = 1 << 16
_SEALS = (
    fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
)


def execute(program: Program, cage: Cage) -> Outcome:
    """Run a program to its end or a limit; nothing of it is left afterwards.

    Args:
      program: what to run.
      cage: where; its directory is ignored.

    Returns:
      How it ended.

    Raises:
      SandboxError: it was never started.
    """
    parts = [
        text.encode(errors="replace")
        for text in (program.source, program.statements, program.expression)
    ]
    lengths = " ".join(str(len(part)) for part in parts)
    with contextlib.ExitStack() as stack:
        if "files" not in cage.pieces:
            cage = dataclasses.replace(
                cage, directory=stack.enter_context(_directory())
            )
        body = b"".join((lengths.encode(), b"\n", *parts))
        inputs = [
            stack.enter_context(_sealed(data))
            for data in (body, program.stdin.encode(errors="replace"))
        ]
        output, stdout = os.pipe()
        report, status = os.pipe()
        pipes = Pipes(program=inputs[0], stdin=inputs[1], stdout=stdout, status=status)
        for descriptor in (output, report):
            stack.callback(os.close, descriptor)
        pid = os.fork()
        if not pid:
            # The last to hold them is the warden: without it no program starts.
            os.close(output)
            os.close(report)
            supervise(cage, pipes)
        stack.callback(_bury, pid)
        os.close(stdout)
        os.close(status)
        _await_start(report)
        return _watch(pid, output, wall_s=program.wall_s, most=cage.limits.output_bytes)


def _await_start(report: int) -> None:
    said = b""
    deadline_s = time.monotonic() + START_S
    while True:
        left_s = max(deadline_s - time.monotonic(), 0)
        if not select.select([report], [], [], left_s)[0]:
            raise SandboxError(f"no start within {START_S:g} s")
        data = os.read(report, _CHUNK_BYTES)
        if not data:
            break
        said += data
    if said != STARTED:
        raise SandboxError(said.lstrip(STARTED).decode() or "it died before its start")


def _watch(pid: int, output: int, *, wall_s: float, most: int) -> Outcome:
    """Collect output until the supervisor has ended, or a limit is hit."""
    started_s = time.monotonic()
    collected = bytearray()
    process = os.pidfd_open(pid)
    try:
        deadline_s = started_s + wall_s
        ending = _collect(collected, output, process, deadline_s=deadline_s, most=most)
    finally:
        os.close(process)
    spent_s = time.monotonic() - started_s
    if ending != "exit":
        return Outcome(ending=ending, code=0, output="", wall_s=spent_s)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None, pid
    is_whole = ended.si_code == os.CLD_EXITED
    code = ended.si_status if is_whole else 128 + ended.si_status
    if code == 128 + signal.SIGXCPU:
        ending = "slow"
    text = collected.decode("latin-1")
    return Outcome(ending=ending, code=code, output=text, wall_s=spent_s)


def _collect(
    collected: bytearray, output: int, process: int, *, deadline_s: float, most: int
) -> str:
    """Read `output` into `collected` until an ending, which is returned."""
    os.set_blocking(output, False)
    watched = [output, process]
    while True:
        left_s = max(deadline_s - time.monotonic(), 0)
        ready = select.select(watched, [], [], left_s)[0]
        has_ended = process in ready
        # Who writes a little now and then is always ready.
        if not has_ended and time.monotonic() >= deadline_s:
            return "slow"
        # All that a program wrote before its end is in the pipe by now.
        is_open = _drain(collected, output, most)
        if len(collected) > most:
            return "flood"
        if has_ended:
            return "exit"
        if not is_open:
            watched = [process]


def _drain(collected: bytearray, output: int, most: int) -> bool:
    """Read what is there, up to the limit; whether there may be more later."""
    with contextlib.suppress(BlockingIOError):
        while len(collected) <= most:
            data = os.read(output, _CHUNK_BYTES)
            if not data:
                return False
            collected += data
    return True


def _bury(pid: int) -> None:
    """Kill the supervisor and all that it started, and wait until they are gone.

    In a process namespace they end with its first process, which is in the
    supervisor's group. Without one a program may have left the group; its orphans then
    belong to the warden.
    """
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while True:
        try:
            is_left = os.waitpid(-1, os.WNOHANG)[0] == 0
            if is_left:
                for child in _children():
                    os.kill(child, signal.SIGKILL)
                os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    children = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # A name in brackets comes first, and may hold anything.
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                children.append(int(path.parent.name))
    return children


@contextlib.contextmanager
def _sealed(data: bytes) -> Iterator[int]:
    """A file in memory that nobody can change any more, at its start."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _directory() -> Iterator[str]:
    """An empty directory, gone afterwards."""
    path = tempfile.mkdtemp(prefix="jigsaw-code-")
    try:
        if not os.geteuid():
            os.chown(path, NOBODY, NOBODY)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
