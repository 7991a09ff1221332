"""The way of a forked process into its cage, up to the program's first instruction.

Nothing here returns to the warden: each process ends in `os._exit`. Until the program
starts, what goes wrong is written to `status`, which the program never holds.
"""

import contextlib
import dataclasses
import errno
import fcntl
import os
import pathlib
import signal
from collections.abc import Callable, Iterator

from jigsaw_jax.reward.sandbox import kernel, landlock, limits, seccomp, view

# Written to `status` just before the program takes over.
STARTED = b"+"
SPAWN_FAILED = 125
# A user of no rights, where the run is root's: the kernel does not count root's
# processes.
NOBODY = 65534
_FLAGS = {
    "network": kernel.CLONE_NEWNET,
    "files": kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS,
    "processes": kernel.CLONE_NEWPID,
}
_PROC = pathlib.Path("/proc")
_PROGRAM_DESCRIPTORS = 4
_STATUS = 4
# Hashes, and so the order of sets, are the same in every run.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
# Isolated (no user's or script's directory on the path), without site packages, and
# UTF-8 whatever the locale is.
_ARGUMENTS = ("-P", "-s", "-S", "-B", "-X", "utf8", "-c")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cage:
    """What a program is put into.

    pieces: of `limits.PIECES`, those that are used.
    limits: of the program.
    loader: Python text that reads the program from descriptor 3 and runs it.
    python: the interpreter.
    readable: what it needs; with `files` or `landlock` all that a program can read.
    directory: where it works unless `files` gives it a place of its own.
    """

    pieces: frozenset[str]
    limits: limits.Limits
    loader: str
    python: str
    readable: tuple[str, ...]
    directory: str = "/"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """Descriptors of the forked process.

    program: read to its end and closed by the loader.
    stdin: of the program.
    stdout: of the program.
    status: what went wrong before it.
    """

    program: int
    stdin: int
    stdout: int
    status: int


def supervise(cage: Cage, pipes: Pipes) -> None:
    """Be the program's supervisor, outside of its process namespace; never returns."""
    with _ending(pipes.status):
        # A leader of its own session is reached, with its children, by one signal.
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            (_PROC / "self/oom_score_adj").write_text("1000")
        _leave_namespaces(cage.pieces)
        if "files" in cage.pieces:
            view.enter(cage.readable, cage.limits.file_bytes)
        _become_nobody()
        # A change of user would undo it.
        _end_with_parent()
        _await(os.fork(), lambda: _be_first(cage, pipes))


def _be_first(cage: Cage, pipes: Pipes) -> None:
    """Process 1 of the namespace: when it ends, the kernel ends all others in it."""
    with _ending(pipes.status):
        _end_with_parent()
        kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 0)
        _await(os.fork(), lambda: _start_program(cage, pipes))


def _start_program(cage: Cage, pipes: Pipes) -> None:
    with _ending(pipes.status):
        _end_with_parent()
        is_own_root = "files" in cage.pieces
        directory = view.WORKING_DIRECTORY if is_own_root else cage.directory
        os.chdir(directory)
        os.umask(0o077)
        _keep_only(pipes)
        command = [cage.python, *_ARGUMENTS, cage.loader]
        limits.apply(cage.limits)
        kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
        if "landlock" in cage.pieces:
            landlock.restrict(
                readable=cage.readable, writable=view.DEVICES, directory=directory
            )
        if "seccomp" in cage.pieces:
            seccomp.restrict()
        os.write(_STATUS, STARTED)
        try:
            os.execve(cage.python, command, _ENVIRONMENT)
        except OSError as error:
            os.write(_STATUS, f"exec: {error.strerror}".encode())


def _leave_namespaces(pieces: frozenset[str]) -> None:
    flags = sum(flag for piece, flag in _FLAGS.items() if piece in pieces)
    if not flags:
        return
    user, group = os.geteuid(), os.getegid()
    flags |= kernel.CLONE_NEWUSER
    if user:
        kernel.unshare(flags)
        # The kernel wants this before an ordinary user's map of groups.
        (_PROC / "self/setgroups").write_text("deny")
        _map_users(_PROC / "self", user=user, group=group)
    else:
        _unshare_as_root(flags)
    # No namespaces inside: they would give back rights over their own.
    (_PROC / "sys/user/max_user_namespaces").write_text("0")


def _unshare_as_root(flags: int) -> None:
    """Unshare so that both root and nobody are known inside.

    Root makes the mounts, since the interpreter may be where only root can go. Only a
    process outside may write a map of two users, so one is forked for that.
    """
    own = _PROC / str(os.getpid())
    wait, done = os.pipe()
    helper = os.fork()
    if not helper:
        with _ending(done):
            os.close(done)
            os.read(wait, 1)
            _map_users(own, user=0, group=0)
            os._exit(0)
    kernel.unshare(flags)
    os.close(done)
    os.close(wait)
    if os.waitpid(helper, 0)[1]:
        raise OSError(errno.EPERM, "uid_map: Operation not permitted")


def _map_users(process: pathlib.Path, *, user: int, group: int) -> None:
    # Nobody is itself, inside and outside, and no superuser inside either.
    nobody = "" if user else f"\n{NOBODY} {NOBODY} 1"
    (process / "uid_map").write_text(f"{user} {user} 1{nobody}")
    (process / "gid_map").write_text(f"{group} {group} 1{nobody}")


def _become_nobody() -> None:
    if os.geteuid():
        return
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _end_with_parent() -> None:
    kernel.prctl("pdeathsig", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def _keep_only(pipes: Pipes) -> None:
    """Descriptors 0 to 3 for the program, and `status` up to its start."""
    wanted = (pipes.stdin, pipes.stdout, os.open(os.devnull, os.O_WRONLY))
    # Copied out of the way first: one may be where another has to go.
    copies = [
        fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 16)
        for descriptor in (*wanted, pipes.program, pipes.status)
    ]
    for target, descriptor in enumerate(copies):
        os.dup2(descriptor, target, inheritable=target < _PROGRAM_DESCRIPTORS)
    os.closerange(_STATUS + 1, os.sysconf("SC_OPEN_MAX"))


def _await(child: int, be_child: Callable[[], None]) -> None:
    """In the child, be it; in the parent, end as it ends."""
    if not child:
        be_child()
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while True:
        # The first process of a namespace also inherits its orphans.
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


@contextlib.contextmanager
def _ending(status: int) -> Iterator[None]:
    """End this process here, whatever happens; say what went wrong."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(status, (error.strerror or str(error)).encode())
    finally:
        os._exit(SPAWN_FAILED)
