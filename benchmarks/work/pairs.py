"""Skip-gram pairs of a made-up text: Zipf distributed words, a window of 5, as they come.

Only numpy: whatever system is compared trains on the same pairs. Pairs follow the text, so
a batch has some ten centres and some twenty contexts, many of them more than once.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUM_NEGATIVES", "NUM_WORDS", "Pairs", "make_pairs"]

NUM_WORDS = 354_051
NUM_NEGATIVES = 5
WINDOW = 5

_ZIPF = 1.0
_NEGATIVE_POWER = 0.75
"""Negatives are drawn by frequency to this power, as word2vec does."""

_STRIDE = 104_729
"""A prime: the most frequent words have no neighbouring numbers."""


class Pairs(NamedTuple):
    """Batches of pairs: B pairs in each of n batches."""

    centres: NDArray[np.int64]
    """[n, B]."""
    contexts: NDArray[np.int64]
    """[n, B]."""
    negatives: NDArray[np.int64]
    """[n, NUM_NEGATIVES], for all pairs of the batch, or [n, B, NUM_NEGATIVES]."""


def make_pairs(num_batches: int, batch_size: int, *, independent: bool, seed: int) -> Pairs:
    """Return pairs in the order of the text; the same for the same seed everywhere.

    Args:
        num_batches: n.
        batch_size: B.
        independent: Whether every pair has its own negatives.
        seed: Of text and negatives.
    """
    rng = np.random.default_rng((seed, batch_size))
    frequency = np.arange(1.0, NUM_WORDS + 1) ** -_ZIPF
    num_pairs = num_batches * batch_size
    text = _draw(rng, frequency, (num_pairs // WINDOW + 2 * WINDOW + 2,))
    reach = rng.integers(1, WINDOW + 1, len(text))
    offsets = np.array([i for i in range(-WINDOW, WINDOW + 1) if i])
    taken = np.abs(offsets) <= reach[WINDOW : len(text) - WINDOW, None]
    positions, which = np.nonzero(taken)
    positions += WINDOW
    centres = text[positions][:num_pairs].reshape(num_batches, batch_size)
    contexts = text[positions + offsets[which]][:num_pairs].reshape(num_batches, batch_size)
    shape = (num_batches, batch_size) if independent else (num_batches,)
    negatives = _draw(rng, frequency**_NEGATIVE_POWER, (*shape, NUM_NEGATIVES))
    return Pairs(centres, contexts, negatives)


def _draw(
    rng: np.random.Generator, frequency: NDArray[np.float64], shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return words drawn by frequency."""
    share = np.cumsum(frequency)
    ranks = np.searchsorted(share, rng.random(shape) * share[-1])
    words: NDArray[np.int64] = np.minimum(ranks, NUM_WORDS - 1) * _STRIDE % NUM_WORDS
    return words
