"""What Ray says of a process that can't be reached, in a few words."""

import re

from ray.exceptions import (
    ActorUnavailableError,
    RayActorError,
    RayError,
    RayTaskError,
)

from jigsaw_jax.runtime.lines.line import LineClosedError


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
