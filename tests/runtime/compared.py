"""Runs over processes beside the same run in one process, to be compared."""

import json
import pathlib
import subprocess
import sys

from jigsaw_jax.runtime.local import LocalCrew, LocalRuntime
from jigsaw_jax.store.checkpoint import Checkpoints

ROOT = pathlib.Path(__file__).parents[2]


def run_apart(module, folder):
    """Run a module's `main` in a process of its own: Ray forks, which JAX minds."""
    command = [sys.executable, "-m", f"tests.runtime.{module}", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def beside_one_process(module, train, folder):
    """The runs of a module, and `whole` in this process, all below `folder`.

    Returns:
      The folder, and the shapes of a checkpoint's arrays.
    """
    run_apart(module, folder)
    whole = LocalRuntime(train, run_dir=folder / "whole", resume=True, operative="")
    assert whole.run() == 0
    crew = whole.control._crew
    assert isinstance(crew, LocalCrew)
    learner = crew._team.parts.learner
    # The last update's weights are not published, so both are in the checkpoint.
    state, params = learner.abstract_state(), learner.abstract_params()
    return folder, {"learner": state, "published": params}


def arrays(path, abstract):
    """What the checkpoint of the fourth update holds."""
    checkpoints = Checkpoints(path / "checkpoints", read_only=True)
    assert checkpoints.latest_step() == 4
    restored, _ = checkpoints.restore(4, abstract)
    checkpoints.close()
    return restored


def summary(path):
    """The run in a few numbers."""
    return json.loads((path / "summary.json").read_text())
