"""What the schedule knows of a group that has neither trained nor been dropped."""

import dataclasses
import math
from collections.abc import Iterable

from jigsaw_jax.records import GroupId


@dataclasses.dataclass(slots=True, eq=False)
class OpenGroup:
    """A group of the run, from its opening to its hand-off; sizes and scores only.

    id: uid and draw.
    order: submission index in the run, kept by later draws.
    version: published when its first sample was admitted, None before.
    tokens: sampled tokens of each finished sample.
    versions: oldest token's version of each finished sample.
    values: score of each scored sample, None where the reward failed.
    is_judged: whether it has passed the filter.
    """

    id: GroupId
    order: int
    version: int | None = None
    tokens: dict[int, int] = dataclasses.field(default_factory=dict[int, int])
    versions: dict[int, int] = dataclasses.field(default_factory=dict[int, int])
    values: dict[int, float | None] = dataclasses.field(
        default_factory=dict[int, float | None]
    )
    is_judged: bool = False

    @property
    def num_tokens(self) -> int:
        """Sampled tokens of the finished samples."""
        return sum(self.tokens.values())

    @property
    def version_min(self) -> int:
        """Version of the oldest token of the finished samples."""
        return min(self.versions.values())


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
