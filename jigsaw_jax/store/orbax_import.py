"""Orbax, imported at first use and kept from printing what it also raises."""

import functools
import importlib
import logging
import sys
import threading
from typing import Any

import jax

_preparing = threading.Lock()


def orbax() -> Any:
    """The module orbax.checkpoint; importing it takes seconds on a busy machine."""
    module = importlib.import_module("orbax.checkpoint")
    # It logs a stack trace of what it also raises; we report the latter.
    absl_log = logging.getLogger("absl")
    # Who imports it ahead and who first needs it come out of the import together.
    with _preparing:
        if _is_not_orbax not in absl_log.filters:
            absl_log.addFilter(_is_not_orbax)
            sys.unraisablehook = functools.partial(_unraisable, sys.unraisablehook)
            # By default each replica of an array writes a slice of it, and each slice
            # is a program that compiles in the middle of training.
            handlers = module.type_handlers
            whole = handlers.ArrayHandler(use_replica_parallel=False)
            handlers.register_type_handler(jax.Array, whole, override=True)
    return module


def checkpointer() -> Any:
    """One that saves in the background; a process of several waits for none of them."""
    ocp = orbax()
    # By default every process of the job would have to call it.
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(), active_processes={jax.process_index()}
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
    return ocp.AsyncCheckpointer(handler, multiprocessing_options=alone)


def _is_not_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname


def _unraisable(hook: Any, unraisable: Any) -> None:
    """Leave out what TensorStore says of each array behind one that failed.

    Orbax closes its event loop at the first failure, and the writers of the others then
    find it closed: on a full disk, a screen of tracebacks around the line that says so.
    """
    is_echo = str(unraisable.exc_value) == "Event loop is closed"
    if not (is_echo and unraisable.object is None):
        hook(unraisable)
