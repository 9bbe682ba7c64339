"""What chance decides in word2vec: which words stay, and which are negatives.

Mikolov et al., "Distributed Representations of Words and Phrases and their
Compositionality", 2013, with the formulas of their word2vec.c.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet.text.kernels import fill_alias

__all__ = ["NEGATIVE_POWER", "Alias", "keep_chances"]

NEGATIVE_POWER = 0.75
"""Negatives are drawn by how often a word occurs, to this power."""

_CERTAIN = 2**32 - 1


def keep_chances(counts: NDArray[np.int64], sample: float) -> NDArray[np.uint32]:
    """Return the chance that an occurrence of each word is trained, of 2**32 - 1, uint32 [V].

    With ``t = sample * (all occurrences) / count`` it is ``sqrt(t) + t``, at most 1.

    Args:
        counts: Occurrences of each word, int64 [V].
        sample: Share of the text above which a word is thinned out; 0 keeps all.
    """
    if not sample:
        return np.full(counts.size, _CERTAIN, np.uint32)
    ratio = sample * counts.sum() / np.maximum(counts, 1)
    chances: NDArray[np.uint32] = np.minimum(np.sqrt(ratio) + ratio, 1.0) * _CERTAIN
    return chances.astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Alias:
    """A table from which a number is drawn in one look: Walker's, by Vose's method.

    A draw takes a place by chance, and there the place itself or its other.
    """

    limits: NDArray[np.uint32]
    """The chance of the place itself, of 2**32 - 1, [V]."""
    others: NDArray[np.int32]
    """What it is else, [V]."""

    @classmethod
    def of(cls, weights: NDArray[np.float64]) -> "Alias":
        """Return the table of a distribution, float64 [V], in proportion to which to draw."""
        size = weights.size
        table = cls(np.empty(size, np.uint32), np.empty(size, np.int32))
        share = weights * (size / weights.sum())
        fill_alias(share, table.limits, table.others, np.empty(size, np.int64))
        return table

    def shares(self) -> NDArray[np.float64]:
        """Return the chance of each number, float64 [V]."""
        itself = self.limits / _CERTAIN
        found = itself.copy()
        np.add.at(found, self.others, 1 - itself)
        shares: NDArray[np.float64] = found / self.limits.size
        return shares
