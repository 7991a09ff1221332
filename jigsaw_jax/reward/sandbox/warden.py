"""The process that starts programs and kills them; it never learns what is right.

    python -m jigsaw_jax.reward.sandbox.warden

The first frame in has the limits, and the first out says which pieces of isolation
hold. Then comes a frame for each program, and one back for each outcome. It ends with
the worker that started it, and every program with it.
"""

import dataclasses
import pathlib
import signal
from typing import Any

from jigsaw_jax.reward import frame
from jigsaw_jax.reward.sandbox import kernel, view
from jigsaw_jax.reward.sandbox.cage import Cage
from jigsaw_jax.reward.sandbox.exchange import Program, SandboxError
from jigsaw_jax.reward.sandbox.execution import execute
from jigsaw_jax.reward.sandbox.limits import Limits
from jigsaw_jax.reward.sandbox.probe import probe

_LOADER = pathlib.Path(__file__).with_name("inside.py")


def main() -> None:
    """Serve until stdin ends."""
    kernel.prctl("pdeathsig", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    # What a program leaves behind becomes ours, and is killed.
    kernel.prctl("subreaper", kernel.PR_SET_CHILD_SUBREAPER, 1)
    source, sink = frame.private_pipes()
    settings = frame.read(source)
    if settings is None:
        return
    cage = Cage(
        pieces=frozenset(),
        limits=Limits(**settings),
        loader=_LOADER.read_text(encoding="utf-8"),
        python=view.interpreter(),
        readable=view.readable(),
    )
    standing = probe(cage)
    frame.write(sink, dataclasses.asdict(standing))
    cage = dataclasses.replace(cage, pieces=frozenset(standing.held))
    while (fields := frame.read(source)) is not None:
        frame.write(sink, _answer(Program(**fields), cage))


def _answer(program: Program, cage: Cage) -> dict[str, Any]:
    """The outcome's fields, or why there is none."""
    try:
        return {"outcome": dataclasses.asdict(execute(program, cage))}
    except (SandboxError, OSError) as error:
        return {"failure": str(error)}


if __name__ == "__main__":
    main()
