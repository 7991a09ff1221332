"""Notebooks are executed small here, with this checkout: no claim that they learn."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
# Kernels and what they start inherit both.
os.environ["JIGSAW_SMALL"] = "1"
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
)
