"""What can go wrong with weights on their way, by what has to follow.

`CarrierError` means another try or carrier; `BaseVersionError` means the same version
sent whole; the other two mean that this offer is never right.
"""

import traceback


class WeightError(Exception):
    """Weights did not arrive; those that a sampler has stay whole."""


class CarrierError(WeightError):
    """A carrier is dead, lost a payload, or did not deliver in time."""


class CorruptError(CarrierError):
    """A carrier delivered bytes that are not those that were sent."""


class BaseVersionError(WeightError):
    """A delta was sent against weights that the receiver does not have."""


class StaleError(WeightError):
    """An offer of another run, or of a version that is not newer."""


class MismatchError(WeightError):
    """The leaves offered are not the leaves wanted, or the offer is malformed."""


def free_memory_of(error: BaseException) -> None:
    """Let go of what the calls that it ended had in hand.

    An error has their frames, and with them every payload that had arrived, for as long
    as anybody has it: a log, a caller, or a future that is in a frame of its own.

    Args:
      error: that came out of them; those that it came from are looked after too.
    """
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__
