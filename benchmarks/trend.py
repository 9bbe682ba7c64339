"""Does a process grow? A robust slope through samples of its memory, and how sure it is.

Memory is taken in stairs, now and then given back, and looked at while others work: a line
of least squares bends to a single stair, and its standard error takes for chance what is
none. Here the slope is the median of those of all pairs of points (Theil, 1950), and its
interval counts how many pairs would have to be otherwise (Sen, "Estimates of the Regression
Coefficient Based on Kendall's Tau", 1968). Both ask for the order of the points only.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["WARM_UP", "Trend", "trend_of"]

WARM_UP = 0.3
"""The share of the samples, from the first on, that tells nothing of growth."""

NUM_PIECES = 12
"""A trend goes through the medians of so many pieces: neighbouring samples are not
independent."""

MIN_PIECES = 4

DEVIATIONS = 1.96
"""Of a normal distribution: 95 % lie within."""

FASTEST = 0.1
"""Units a minute. What has risen by more from the first quarter to the last has grown, in
however few stairs: a leak that waits in an arena comes at once."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How samples rise."""

    slope: float
    """Units a minute: the median of all pairs."""
    low: float
    """Where its interval of 95 % begins."""
    high: float
    """And ends."""
    rise: float
    """Units a minute from the median of the first quarter to that of the last."""

    @property
    def is_growth(self) -> bool:
        """Return whether the samples rise by more than chance explains, or fast."""
        return self.low > 0 or self.rise > FASTEST


def trend_of(seconds: ArrayLike, values: ArrayLike) -> Trend:
    """Return how values rise after the warm-up; of too few there is no trend.

    Args:
        seconds: When, rising.
        values: What.
    """
    whole = np.array([seconds, values], np.float64)
    pieces = np.array_split(whole[:, int(whole.shape[1] * WARM_UP) :], NUM_PIECES, axis=1)
    points = np.array([np.median(piece, axis=1) for piece in pieces if piece.size])
    if len(points) < MIN_PIECES:
        return Trend(0.0, 0.0, 0.0, 0.0)
    minutes, medians = points[:, 0] / 60.0, points[:, 1]
    num = len(points)
    early, late = np.triu_indices(num, 1)
    slopes = np.sort((medians[late] - medians[early]) / (minutes[late] - minutes[early]))
    slope = float(np.median(slopes))
    deviation = (
        num * (num - 1) * (2 * num + 5) / 18 * _alike(medians - slope * minutes)
    ) ** 0.5
    cut = max(0, int((len(slopes) - DEVIATIONS * deviation) / 2) - 1)
    quarter = num // 4
    took = np.median(minutes[-quarter:]) - np.median(minutes[:quarter])
    rise = float((np.median(medians[-quarter:]) - np.median(medians[:quarter])) / took)
    return Trend(slope, float(slopes[cut]), float(slopes[-1 - cut]), rise)


def _alike(rest: NDArray[np.float64]) -> float:
    """Return by how much less there is to learn from points that are like their neighbours.

    What one piece lies above the line the next does too (an AR(1) process).
    """
    rest = rest - rest.mean()
    alike = float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-12)
    alike = min(max(alike, 0.0), 0.9)
    return (1.0 + alike) / (1.0 - alike)
