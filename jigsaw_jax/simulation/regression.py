"""Costs from measured times: linear, robust, never negative."""

from collections.abc import Hashable, Sequence

import numpy as np

_FAVOUR = 1e4
_ROUNDS = 50


def typical(
    rows: Sequence[Sequence[float | int]],
    seconds: Sequence[float],
    favours: Sequence[int] = (),
) -> np.ndarray:
    """Coefficients with the least sum of absolute residuals; none is negative.

    So the typical time is what is fitted, and one that something else made long counts
    no more than another. Of coefficients below 0 the most negative one is fixed at 0.

    Args:
      rows: what each time is made of.
      seconds: the times.
      favours: columns that are to explain what others could too; what several of
        them, or of the others, explain alike they share.

    Returns:
      One number a column.
    """
    matrix, times = np.asarray(rows, float), np.asarray(seconds, float)
    # The least norm is sought, in which their coefficients then hardly count.
    matrix[:, list(favours)] *= _FAVOUR
    kept, found = list(range(matrix.shape[1])), np.zeros(matrix.shape[1])
    while kept:
        values = _least_absolute(matrix[:, kept], times)
        if values.min() >= 0:
            found[kept] = values
            break
        kept.pop(int(values.argmin()))
    found[list(favours)] *= _FAVOUR
    return found


def distance(
    rows: Sequence[Sequence[float | int]],
    seconds: Sequence[float],
    favours: Sequence[int] = (),
) -> float:
    """What `typical` makes least: the sum of the absolute residuals."""
    found = typical(rows, seconds, favours)
    return float(np.abs(np.asarray(rows, float) @ found - np.asarray(seconds)).sum())


def level(
    found: np.ndarray,
    rows: Sequence[Sequence[float | int]],
    seconds: Sequence[float],
    parts: Sequence[Hashable],
) -> float:
    """The factor with which the coefficients give the sum of a typical part.

    Times have a longer tail above than below, so the sum of many is more than the
    typical time of each. A part that was disturbed as a whole counts no more than
    another.

    Args:
      found: coefficients.
      rows: what each time is made of.
      seconds: the times.
      parts: to which each belongs: its round.

    Returns:
      The median over the parts of their sum over the fitted one.
    """
    fitted = np.asarray(rows, float) @ found
    sums: dict[Hashable, list[float]] = {}
    for part, guess_s, real_s in zip(parts, fitted, seconds, strict=True):
        own = sums.setdefault(part, [0.0, 0.0])
        own[0] += guess_s
        own[1] += real_s
    ratios = [real_s / guess_s for guess_s, real_s in sums.values() if guess_s > 0]
    return float(np.median(ratios)) if ratios else 1.0


def _least_absolute(matrix: np.ndarray, times: np.ndarray) -> np.ndarray:
    """By least squares over and over, each time weighted by its last residual."""
    # A residual far below the times themselves is as good as none.
    floor = 1e-6 * max(float(np.abs(times).max()), 1e-12)
    values = _least_squares(matrix, times)
    for _ in range(_ROUNDS):
        residuals = np.abs(times - matrix @ values)
        weights = 1 / np.sqrt(np.maximum(residuals, floor))
        values = _least_squares(matrix * weights[:, None], times * weights)
    return values


def _least_squares(matrix: np.ndarray, times: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(matrix, times, rcond=None)[0]
