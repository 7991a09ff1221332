"""Makes JAX ready for a run before its first operation: devices and compile cache."""

import contextlib
import os
import pathlib

import jax

from jigsaw_jax import mesh as meshes
from jigsaw_jax.settings import Mesh


def prepare_devices(mesh: Mesh, *, num_hosts: int = 1) -> None:
    """Offer enough CPU devices, turn the compilation cache on, check the mesh.

    Call it before JAX has run anything: devices are counted once.

    Args:
      mesh: what the run needs.
      num_hosts: of the slice that this process is one of.

    Raises:
      ValueError: the mesh needs more devices than there are; the text has the fix.
    """
    # Only more than asked for elsewhere (8 in tests); accelerators are not affected.
    needed = -(-mesh.num_devices // num_hosts)
    if jax.config.values["jax_num_cpu_devices"] < needed:
        # Too late where JAX has run already: the mesh then has what there is.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", needed)
    meshes.build_meshes(mesh, jax.devices())
    keep_compilations(cache_dir())


def cache_dir() -> pathlib.Path:
    """Where compiled programs are kept: JIGSAW_CACHE_DIR, else the user's cache."""
    default = pathlib.Path.home() / ".cache" / "jigsaw_jax" / "xla"
    return pathlib.Path(os.environ.get("JIGSAW_CACHE_DIR") or default)


def keep_compilations(path: pathlib.Path) -> bool:
    """Keep every compiled program in `path`; a later start then compiles nothing.

    Args:
      path: a directory, made where it is missing.

    Returns:
      Whether it can be written; a run goes on without a cache where it can't.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    if not os.access(path, os.W_OK):
        return False
    jax.config.update("jax_compilation_cache_dir", str(path))
    # The defaults leave out what compiles in under a second: most of a small model.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return True
