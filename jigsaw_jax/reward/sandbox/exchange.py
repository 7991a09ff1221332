"""What a worker and its warden tell each other."""

import dataclasses


class SandboxError(Exception):
    """The sandbox failed, and not the program."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run.

    source: Python text.
    statements: run behind it, before the expression.
    expression: whose value is the output; empty for a script.
    stdin: its input.
    wall_s: after which it is killed.
    """

    source: str
    statements: str = ""
    expression: str = ""
    stdin: str = ""
    wall_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a program.

    ending: "exit", "slow" (killed at a limit of time) or "flood" (of output).
    code: exit code, or 128 and the number of the signal that ended it.
    output: what it wrote to stdout, bytes as the first 256 characters.
    wall_s: from its start to its end.
    """

    ending: str
    code: int
    output: str
    wall_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What was found.

    held: pieces that hold, together, in the order of `limits.PIECES`.
    missing: the others, and why.
    """

    held: tuple[str, ...]
    missing: dict[str, str]
