"""Why a process or a thread of a worker has ended, in a few words."""

import re

from ray.exceptions import (
    ActorUnavailableError,
    RayActorError,
    RayError,
    RayTaskError,
)

from jigsaw_jax.runtime.crew import CrewLostError
from jigsaw_jax.runtime.inputs import RefusedError
from jigsaw_jax.runtime.lines.line import LineClosedError
from jigsaw_jax.store.files import StoreError

# Errors of a worker that mean the same here.
_KNOWN = {"StoreError": StoreError, "RefusedError": RefusedError}


class WorkerFailedError(Exception):
    """What a thread of another process died of; its traceback is the message."""


def error_of(thread: str, kind: str, text: str, trace: str) -> Exception:
    """What a thread's error is for the run.

    Args:
      thread: its name, and its worker's.
      kind: of the error, the name of its class.
      text: its message.
      trace: its traceback.

    Returns:
      An error to end the run with, or this life of it.
    """
    if kind == "PayloadLostError":
        return CrewLostError(f"completions are lost: {text}")
    if kind in _KNOWN:
        return _KNOWN[kind](text)
    return WorkerFailedError(f"in {thread}: {text}\n{trace}")


def is_fault(error: RayError) -> bool:
    """Whether a worker's own code raised it, which would come again in another."""
    if isinstance(error, RayActorError):
        return error.actor_init_failed
    return isinstance(error, RayTaskError) and not _is_cut_off(error)


def _is_cut_off(error: RayError) -> bool:
    """Whether the process has not reached this one, which is the network's fault."""
    return isinstance(error, RayTaskError) and isinstance(error.cause, LineClosedError)


def reason_of(error: RayError) -> str:
    """Why a worker is lost, in a few words."""
    if isinstance(error, RayTaskError) and _is_cut_off(error):
        return str(error.cause)
    found = re.search(r"is dead because ([^.:\n]+)", str(error))
    if found:
        return found[1]
    if isinstance(error, ActorUnavailableError):
        return "it can't be reached"
    if isinstance(error, RayActorError):
        return "its process has ended"
    return str(error).strip().split("\n")[0] or type(error).__name__
