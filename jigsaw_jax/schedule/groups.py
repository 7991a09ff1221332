"""What the schedule knows of a group that has not ended."""

import functools
import math
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import TypeVar

from jigsaw_jax.records import GroupId, SampleId
from jigsaw_jax.schedule.slots import Worker
from jigsaw_jax.schedule.states import State

# What `SamplesReported` has of a sample: its identity, the attempt and more.
Started = tuple[SampleId, int, float]
Finished = tuple[SampleId, int, int, int]
Scored = tuple[SampleId, int, float | None]
RowT = TypeVar("RowT", Started, Finished, Scored)

# A third of what a call of the class takes.
_sample_id: Callable[[tuple[str, int, int]], SampleId]
_sample_id = functools.partial(tuple.__new__, SampleId)  # pyright: ignore[reportUnknownMemberType]


class Member:
    """One sample of an open group: all that the machines know of it.

    Args:
      sample: its identity.

    Attributes:
      id: its identity.
      state: where it is; this and the next two are the ledger's.
      attempt: which delivery this is.
      failures: deliveries that were lost.
      worker: whose slot it has, None without one.
      since_s: when it was sent out last, to a worker or to be scored; None while
        nothing is waited for.
      number: tells apart what was sent out at the same time, in order.
      tokens: sampled ones, 0 before it has finished.
      version: of its oldest token, -1 before.
      value: its score, None where the reward failed.
    """

    __slots__ = (
        "attempt",
        "failures",
        "id",
        "number",
        "since_s",
        "state",
        "tokens",
        "value",
        "version",
        "worker",
    )

    def __init__(self, sample: SampleId) -> None:
        self.id = sample
        self.state = State.QUEUED
        self.attempt = self.failures = self.number = self.tokens = 0
        self.version = -1
        self.worker: Worker | None = None
        self.since_s: float | None = None
        self.value: float | None = None


class OpenGroup:
    """A group of the run, from its opening to its end; sizes and scores only.

    Ledger and sampler keep here what they know of it. What is under way is more than
    the processor has at hand, so that each further place where something is looked up
    costs more than what is done there.

    Args:
      group: its identity.
      order: submission index in the run, kept by later draws.
      size: samples of a group.

    Attributes:
      id: uid and draw.
      order: see above.
      samples: their identities by index.
      members: the samples.
      state: of all, once they have one together.
      update: that it is leased to.
      version: published when its first sample was admitted, None before.
      num_finished: samples that have.
      num_scored: samples that are.
      num_tokens: sampled ones of those that have finished.
      is_judged: whether it has passed the filter.
    """

    __slots__ = (
        "id",
        "is_judged",
        "members",
        "num_finished",
        "num_scored",
        "num_tokens",
        "order",
        "samples",
        "state",
        "update",
        "version",
    )

    def __init__(self, group: GroupId, order: int, size: int) -> None:
        self.id = group
        self.order = order
        rows = zip(repeat(group[0]), repeat(group[1]), range(size), strict=False)
        self.samples = tuple(map(_sample_id, rows))
        self.members = tuple(map(Member, self.samples))
        self.state: State | None = None
        self.update: int | None = None
        self.version: int | None = None
        self.num_finished = self.num_scored = self.num_tokens = 0
        self.is_judged = False

    @property
    def version_min(self) -> int:
        """Version of the oldest token of a group all of whose samples have finished."""
        return min([member.version for member in self.members])


def when_sent(sent: tuple[OpenGroup, Member]) -> tuple[float, int]:
    """For sorting what is waited for by when it was sent out."""
    _, member = sent
    assert member.since_s is not None
    return member.since_s, member.number


def verdict(values: Iterable[float | None], rule: str) -> str | None:
    """Judge a scored group by its raw rewards; missing ones do not count.

    Args:
      values: one a sample, None where the reward failed.
      rule: "drop" or "keep" groups whose rewards are all equal.

    Returns:
      None where the group trains, else why not: "no_score" without any reward, or
      "zero_variance" where the largest is the smallest (a single one included).

    Raises:
      ValueError: a reward that is not finite.
    """
    valid = [value for value in values if value is not None]
    for value in valid:
        if not math.isfinite(value):
            raise ValueError(
                f"SampleScored.value must be finite, got {value!r}; "
                "a reward that failed is None"
            )
    if not valid:
        return "no_score"
    if rule == "drop" and max(valid) == min(valid):
        return "zero_variance"
    return None
