"""How often which ids are used, by Zipf's law: classes of ids that are used about as often."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Popularity"]

_ALONE = 4096
"""So many of the hottest ids are classes of their own."""

_GROWTH = 1.01
"""Each class behind them has so many times the ids of the one before."""


@dataclass(frozen=True, slots=True)
class Popularity:
    """Classes of ids, the hottest first. C = classes."""

    counts: NDArray[np.float64]
    """[C]: ids of each class."""
    shares: NDArray[np.float64]
    """[C]: which part of all references one id of the class has."""

    @classmethod
    def zipf(cls, num_ids: int, exponent: float) -> "Popularity":
        """Return that of ids whose r-th has a share like ``r ** -exponent``.

        Args:
            num_ids: At least 1.
            exponent: 0 for ids that are used equally often.
        """
        alone = min(num_ids, _ALONE)
        ends = [float(alone)]
        while ends[-1] < num_ids:
            ends.append(min(float(num_ids), max(ends[-1] + 1.0, ends[-1] * _GROWTH)))
        edges = np.array(ends)
        # The sum over ranks a + 1 to b is nearly the integral from a + 1/2 to b + 1/2.
        heads = np.arange(1.0, alone + 1.0) ** -exponent
        tails = np.diff(_integral(edges + 0.5, exponent))
        counts = np.concatenate([np.ones(alone), np.diff(edges)])
        weights = np.concatenate([heads, tails])
        return cls(counts, weights / weights.sum() / counts)

    def expected(self, of_each: NDArray[np.float64]) -> float:
        """Return the sum over all ids of what one of each class has: float64 [C]."""
        return float(np.dot(self.counts, of_each))

    def in_batch(self, num_references: float) -> NDArray[np.float64]:
        """Return the chance of an id of each class to be in a batch: float64 [C]."""
        chances: NDArray[np.float64] = -np.expm1(-num_references * self.shares)
        return chances

    def hottest(self, num_ids: float) -> NDArray[np.float64]:
        """Return which part of each class is among so many hottest ids: float64 [C]."""
        before = np.cumsum(self.counts) - self.counts
        parts: NDArray[np.float64] = np.clip((num_ids - before) / self.counts, 0.0, 1.0)
        return parts


def _integral(edges: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Return an antiderivative of ``x ** -exponent``."""
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        return np.log(edges)
    values: NDArray[np.float64] = edges**power / power
    return values
