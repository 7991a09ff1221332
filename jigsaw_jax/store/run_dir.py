"""The layout of a run's directory, its lock, and rewinding its logs on resume.

    config.gin        the operative configuration
    metrics.jsonl     one record an update
    evaluations.jsonl one record an evaluation
    events.jsonl      every interval and mark of the pipeline, with its clock
    rollouts/         update-000012.jsonl: what was sampled for that update
    summary.json      the run in a few numbers
    checkpoints/      whole checkpoints, the last few
    export/           the last policy as a Hugging Face folder
    tensorboard/      the metrics again, for TensorBoard
    run.lock          held while a process works here; counts the incarnations

A checkpoint's record carries `offsets()`. A resumed run calls `rewind` with them, and
what was logged after that checkpoint moves to `metrics.rewound.jsonl` and
`events.rewound.jsonl`: the logs tell one story, and nothing is lost.
"""

import fcntl
import json
import os
import pathlib
from typing import Any, Protocol, runtime_checkable

from jigsaw_jax.store import files, metrics
from jigsaw_jax.store.files import StoreError

LOGS = ("metrics.jsonl", "events.jsonl", "evaluations.jsonl")


@runtime_checkable
class Log(Protocol):
    """An append-only log that may hold lines back."""

    def flush(self) -> None:
        """Hand every line to the operating system."""
        ...


class RunDir:
    """One run's directory; `lock` it before writing.

    Args:
      path: the directory.

    Attributes:
      path: the directory.
      incarnation: 1 for the first process that worked here, 0 while not locked.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self.incarnation = 0
        self._lock_fd: int | None = None

    @property
    def config(self) -> pathlib.Path:
        """Operative gin configuration."""
        return self.path / "config.gin"

    @property
    def metrics(self) -> pathlib.Path:
        """One record an update."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> pathlib.Path:
        """Every interval and mark."""
        return self.path / "events.jsonl"

    @property
    def evaluations(self) -> pathlib.Path:
        """One record an evaluation."""
        return self.path / "evaluations.jsonl"

    @property
    def rollouts(self) -> pathlib.Path:
        """Directory of samples by update."""
        return self.path / "rollouts"

    @property
    def summary(self) -> pathlib.Path:
        """The run in a few numbers."""
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> pathlib.Path:
        """Directory of checkpoints."""
        return self.path / "checkpoints"

    @property
    def export(self) -> pathlib.Path:
        """The Hugging Face folder."""
        return self.path / "export"

    @property
    def tensorboard(self) -> pathlib.Path:
        """Directory of TensorBoard files."""
        return self.path / "tensorboard"

    @property
    def report(self) -> pathlib.Path:
        """The page that `python -m jigsaw_jax.report` writes."""
        return self.path / "report.html"

    def check_free(self) -> None:
        """See to it that `lock` can be expected to work; changes nothing.

        Raises:
          StoreError: if another process works here.
        """
        try:
            fd = os.open(self.path / "run.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        self._take(fd)
        os.close(fd)

    def _take(self, fd: int) -> None:
        """Lock the open file, or close it and say who has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = _lock_content(fd).get("pid", "unknown")
            os.close(fd)
            raise StoreError(
                f"run directory {self.path} is in use by process {pid}; "
                "wait for it or choose another --run_dir"
            ) from error

    def lock(self) -> None:
        """Make the directory and hold it for this process.

        The kernel drops the lock when the process ends, however it ends, so a dead
        process never blocks the next one.

        Raises:
          StoreError: if another process works here, or it cannot be written.
        """
        if self._lock_fd is not None:
            return
        path = self.path / "run.lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot write run directory {self.path}: {reason}") from (
                error
            )
        self._take(fd)
        self._lock_fd = fd
        self.incarnation = int(_lock_content(fd).get("incarnation", 0)) + 1
        content = {"pid": os.getpid(), "incarnation": self.incarnation}
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(content).encode(), 0)
        except OSError as error:
            self.unlock()
            reason = error.strerror or error
            raise StoreError(f"cannot write run directory {self.path}: {reason}") from (
                error
            )

    def unlock(self) -> None:
        """Let another process work here; without effect if not locked."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
            self.incarnation = 0

    def write_config(self, text: str) -> None:
        """Write the operative configuration atomically."""
        files.write_text(self.config, text)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json atomically; NaN and infinity are written as null."""
        plain = {name: metrics.plain(value) for name, value in summary.items()}
        files.write_json(self.summary, plain)

    def offsets(self, *logs: Log) -> dict[str, int]:
        """Flush `logs`, then give the size of every append-only log by file name."""
        for log in logs:
            log.flush()
        return {name: files.whole_lines_size(self.path / name) for name in LOGS}

    def rewind(self, offsets: dict[str, int]) -> int:
        """Move what was logged behind `offsets` aside; call it before opening logs.

        Args:
          offsets: of the checkpoint resumed from; {} where there is none.

        Returns:
          How many bytes moved.

        Raises:
          StoreError: if a log cannot be rewritten.
        """
        try:
            return sum(
                files.cut(self.path / name, offsets.get(name, 0)) for name in LOGS
            )
        except OSError as error:
            raise StoreError(
                f"cannot rewind the logs of {self.path}: {error.strerror or error}"
            ) from error


def _lock_content(fd: int) -> dict[str, Any]:
    try:
        return json.loads(os.pread(fd, 4096, 0) or b"{}")
    except ValueError:
        # A kill between truncate and write leaves a torn line; only the count is lost.
        return {}
