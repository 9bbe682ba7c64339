"""Clicks made up by a rule: 26 Zipf distributed slots, 13 numbers, and a planted signal.

Only numpy: whatever system is compared trains on the same examples. The label is drawn
from a logistic model with one weight an id and one a number. Its own scores have an AUC
of about 0.88, which is the most that anybody can learn.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUM_DENSE", "NUM_IDS", "NUM_SLOTS", "Clicks", "make_clicks"]

NUM_SLOTS = 26
NUM_DENSE = 13
NUM_IDS = 1_000_000

_ZIPF = 1.1
_ID_STD = 0.45
_DENSE_STD = 0.25
_BIAS = -0.5
_TRUTH_SEED = 26_13


class Clicks(NamedTuple):
    """Some examples, n of them."""

    ids: NDArray[np.int64]
    """[n, NUM_SLOTS]; each slot has its own part of 0..NUM_IDS."""
    dense: NDArray[np.float32]
    """[n, NUM_DENSE], standard normal."""
    labels: NDArray[np.float32]
    """[n], 0 or 1."""


def make_clicks(num: int, *, seed: int, num_ids: int = NUM_IDS) -> Clicks:
    """Return ``num`` examples; the same numbers for the same seed, in every process.

    Args:
        num: How many.
        seed: Of the examples; the signal is the same under every seed.
        num_ids: Ids there are; a fewth part is seen in any run.
    """
    truth = np.random.default_rng((_TRUTH_SEED, num_ids))
    weights = truth.normal(0.0, _ID_STD, num_ids).astype(np.float32)
    slopes = truth.normal(0.0, _DENSE_STD, NUM_DENSE).astype(np.float32)
    each = num_ids // NUM_SLOTS
    shuffled = np.stack([truth.permutation(each) for _ in range(NUM_SLOTS)])
    rng = np.random.default_rng((seed, num_ids))
    share = np.cumsum(np.arange(1.0, each + 1) ** -_ZIPF)
    ranks = np.searchsorted(share, rng.random((num, NUM_SLOTS)) * share[-1])
    slots = np.arange(NUM_SLOTS)
    ids = shuffled[slots, np.minimum(ranks, each - 1)] + slots * each
    dense = rng.standard_normal((num, NUM_DENSE), np.float32)
    logits = weights[ids].sum(1) + dense @ slopes + np.float32(_BIAS)
    labels = rng.random(num) < 1.0 / (1.0 + np.exp(-logits))
    return Clicks(ids.astype(np.int64), dense, labels.astype(np.float32))
