"""The worker's end of its warden: start it, ask what holds, run programs."""

import contextlib
import dataclasses
import functools
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jigsaw_jax
from jigsaw_jax.reward import frame
from jigsaw_jax.reward.sandbox.exchange import (
    Outcome,
    Program,
    SandboxError,
    Standing,
)
from jigsaw_jax.reward.sandbox.limits import PIECES, REQUIRED, Limits, limits_of
from jigsaw_jax.settings import Reward


class IsolationError(Exception):
    """This machine lacks isolation that the settings want; the message is one line."""


class Sandbox:
    """A warden and what holds on this machine; for one thread.

    `standing` says which pieces of isolation hold. Where no warden can start at all,
    on another system than Linux say, making one raises IsolationError.
    """

    def __init__(self, limits: Limits) -> None:
        root = str(pathlib.Path(jigsaw_jax.__file__).parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-B", "-m", "jigsaw_jax.reward.sandbox.warden"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Nothing of the run's own, which may hold keys.
            env={"PYTHONPATH": root},
        )
        found = self._ask(dataclasses.asdict(limits))
        if found is None:
            self.close()
            raise IsolationError(
                "the sandbox's warden must start, got an end without a word; "
                "`python -m jigsaw_jax.reward.sandbox.warden < /dev/null` may say why"
            )
        self.standing = Standing(held=tuple(found["held"]), missing=found["missing"])

    def run(self, program: Program) -> Outcome:
        """Run a program.

        Args:
          program: what to run.

        Returns:
          What became of it.

        Raises:
          SandboxError: the sandbox failed, and not the program.
          SystemExit: the warden is gone; the worker goes too and both are replaced.
        """
        answer = self._ask(dataclasses.asdict(program))
        if answer is None:
            raise SystemExit("the sandbox's warden is gone")
        if "failure" in answer:
            raise SandboxError(answer["failure"])
        return Outcome(**answer["outcome"])

    def close(self) -> None:
        """End the warden."""
        assert self._process.stdin is not None
        with self._process, contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _ask(self, message: Any) -> Any:
        """The warden's answer, or None where there is no warden any more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            frame.write(self._process.stdin, message)
            return frame.read(self._process.stdout)
        except BrokenPipeError:
            return None


@functools.cache
def sandbox_of(limits: Limits) -> Sandbox:
    """The process's one sandbox of these limits, started at the first call."""
    return Sandbox(limits)


def check_isolation(reward: Reward) -> str:
    """Which pieces hold here, as one line, or a refusal.

    Args:
      reward: names the reward "code".

    Returns:
      A line for the log.

    Raises:
      IsolationError: a piece is missing that `Reward.code_isolation` wants.
    """
    with _opened(limits_of(reward)) as sandbox:
        require(sandbox.standing, reward)
        return describe(sandbox.standing)


def require(standing: Standing, reward: Reward) -> None:
    """Refuse what is missing.

    Args:
      standing: what holds.
      reward: says what must.

    Raises:
      IsolationError: naming the missing pieces and the way out.
    """
    # Without limits a program could take the machine down, whatever is accepted.
    is_strict = reward.code_isolation == "strict"
    wanted = REQUIRED if is_strict else ("limits",)
    missing = [piece for piece in wanted if piece in standing.missing]
    if not missing:
        return
    pieces = "; ".join(
        f"{piece} (against {PIECES[piece]}): {standing.missing[piece]}"
        for piece in missing
    )
    fix = (
        "run where user namespaces are allowed and as a user other than root"
        if "limits" in missing
        else "Reward.code_isolation = 'best_effort' accepts that"
    )
    raise IsolationError(
        f"Reward.code_isolation must be something this machine can keep for the "
        f"reward code, got {reward.code_isolation!r} without {pieces}; {fix}"
    )


def describe(standing: Standing) -> str:
    """One line on what holds and what does not."""
    line = f"code sandbox: {', '.join(standing.held)} hold"
    if standing.missing:
        missing = (f"{piece} ({why})" for piece, why in standing.missing.items())
        line += f"; missing: {', '.join(missing)}"
    return line


@contextlib.contextmanager
def _opened(limits: Limits) -> Iterator[Sandbox]:
    sandbox = Sandbox(limits)
    try:
        yield sandbox
    finally:
        sandbox.close()
