"""A line through measured points, of which old ones fade."""

import math
from typing import Any

# What a point keeps of its weight with each later one: about 200 count.
KEEP = 0.995
# Points this close to one another, as a share of their mean, tell no slope.
SPREAD_MIN = 0.01


class Line:
    """y = a + b x by least squares, with x > 0, a >= 0 and b >= 0.

    While all points have nearly the same x the slope stays what it was, at first
    unknown and taken for 0.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._slope: float | None = None

    def add(self, x: float, y: float) -> None:
        """A point was measured."""
        self._weight = self._weight * KEEP + 1
        self._x += (x - self._x) / self._weight
        self._y += (y - self._y) / self._weight
        self._xx += (x * x - self._xx) / self._weight
        self._xy += (x * y - self._xy) / self._weight
        variance = self._xx - self._x * self._x
        if variance > (SPREAD_MIN * self._x) ** 2:
            self._slope = (self._xy - self._x * self._y) / variance

    @property
    def has_points(self) -> bool:
        """Whether any point was measured."""
        return self._weight > 0

    @property
    def is_known(self) -> bool:
        """Whether points have shown a slope."""
        return self._slope is not None

    @property
    def knee(self) -> float:
        """Where y is twice a, so a / b; infinite where b is 0."""
        slope = self._limited_slope()
        return self.at(0.0) / slope if slope else math.inf

    def at(self, x: float) -> float:
        """The line there; 0 without any point."""
        return self._y + self._limited_slope() * (x - self._x)

    def _limited_slope(self) -> float:
        if not self._weight:
            return 0.0
        return min(max(self._slope or 0.0, 0.0), self._y / self._x)

    def snapshot(self) -> list[Any]:
        """JSON values."""
        moments = [self._x, self._y, self._xx, self._xy]
        return [self._weight, *moments, self._slope]

    def restore(self, snapshot: list[Any]) -> None:
        """Take over a snapshot."""
        self._weight, self._x, self._y, self._xx, self._xy, self._slope = snapshot
