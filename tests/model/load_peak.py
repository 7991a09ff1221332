"""What a process of its own needs at most to load a Hugging Face folder."""

import os
import subprocess
import sys
from typing import NamedTuple

SCRIPT = """
import dataclasses, pathlib, sys
import jax
jax.config.update("jax_platforms", "cpu")
from jigsaw_jax.model.hf_folder import Folder
from jigsaw_jax.model.hf_load import load_folder

folder = Folder(sys.argv[1])
decoder = dataclasses.replace(
    folder.decoder, param_dtype=sys.argv[2], scan_layers=sys.argv[3] == "scan"
)
jax.block_until_ready(jax.numpy.zeros(3))

def peak():
    # getrusage would give the parent's peak where it is larger.
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM"))

start = peak()
params = jax.block_until_ready(load_folder(folder, decoder))
size = sum(x.nbytes for x in jax.tree.leaves(params))
print(start, peak(), size)
"""


class Peak(NamedTuple):
    """Bytes: of the process before and after loading, at most, and of the weights."""

    start: int
    peak: int
    size: int


def measure(folder, dtype, layers):
    """Loads `folder` as `dtype`, layers "scan" or "unrolled"."""
    command = [sys.executable, "-c", SCRIPT, str(folder), dtype, layers]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    return Peak(*map(int, done.stdout.split()))
