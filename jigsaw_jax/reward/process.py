"""The pool's end of one worker process: start, send, receive with a limit, kill."""

import contextlib
import dataclasses
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from typing import Any

import jigsaw_jax
from jigsaw_jax.reward import frame
from jigsaw_jax.settings import Reward

_CHUNK_BYTES = 1 << 16


class WorkerDiedError(Exception):
    """The worker's process has ended, or what it sends makes no sense."""


class WorkerRefusedError(Exception):
    """The worker says why it can't score here; the message is one line."""


class WorkerProcess:
    """One worker; whoever owns it must kill it. For one thread at a time.

    Only `kill` may come from another thread; the owner then sees the worker die.
    """

    def __init__(self, reward: Reward) -> None:
        root = str(pathlib.Path(jigsaw_jax.__file__).parents[1])
        paths = [root, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            # A score is small; threads of a matrix library would only cost memory.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        # In a session of its own, Ctrl-C in the terminal does not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jigsaw_jax.reward.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        self._received = bytearray()
        self._first: Any = dataclasses.asdict(reward)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until it has loaded what its rewards need.

        Args:
          timeout_s: wall limit.

        Raises:
          WorkerRefusedError: it can't score on this machine.
          TimeoutError: it was not ready in time.
          WorkerDiedError: it is gone.
        """
        self.send(self._first, timeout_s)
        match self.receive(timeout_s):
            case {"refused": str(why)}:
                raise WorkerRefusedError(why)

    def send(self, message: Any, timeout_s: float) -> None:
        """Write a whole message.

        Args:
          message: JSON values.
          timeout_s: wall limit.

        Raises:
          TimeoutError: it did not read in time.
          WorkerDiedError: it is gone.
        """
        rest = memoryview(frame.pack(message))
        deadline_s = time.monotonic() + timeout_s
        while rest:
            left_s = max(deadline_s - time.monotonic(), 0)
            if not select.select([], [self._stdin], [], left_s)[1]:
                raise TimeoutError
            try:
                rest = rest[os.write(self._stdin, rest[:_CHUNK_BYTES]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise WorkerDiedError from error

    def receive(self, timeout_s: float) -> Any:
        """Read one message; what has arrived by now is never late.

        Args:
          timeout_s: wall limit.

        Returns:
          The message.

        Raises:
          TimeoutError: it did not answer in time.
          WorkerDiedError: it is gone, or broke the protocol.
        """
        deadline_s = time.monotonic() + timeout_s
        while (message := self._next_message()) is None:
            left_s = max(deadline_s - time.monotonic(), 0)
            if not select.select([self._stdout], [], [], left_s)[0]:
                raise TimeoutError
            data = os.read(self._stdout, _CHUNK_BYTES)
            if not data:
                raise WorkerDiedError
            self._received += data
        return message

    def kill(self) -> None:
        """End it and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and free what it held; only its owner may."""
        self.kill()
        with self._process:
            pass

    def _next_message(self) -> Any:
        header = bytes(self._received[: frame.LENGTH_BYTES])
        if len(header) < frame.LENGTH_BYTES:
            return None
        try:
            length = frame.body_length(header, frame.BODY_BYTES_MAX)
            end = frame.LENGTH_BYTES + length
            if len(self._received) < end:
                return None
            body = bytes(self._received[frame.LENGTH_BYTES : end])
            del self._received[:end]
            return frame.unpack(body)
        except frame.FrameError as error:
            # As good as dead: something has taken it over.
            raise WorkerDiedError from error
