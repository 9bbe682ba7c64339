"""What metrics of clicks and of rankings are counted from: numbers of one worker, no sums yet.

They are float64. A label is positive above 0.5. ``fleet.metrics`` adds up over workers what
callers sum here, and makes the metric of it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import ContractError

__all__ = [
    "MAX_CELLS",
    "AtK",
    "GroupCells",
    "PlacesError",
    "at_k",
    "entropy",
    "group_auc",
    "log_losses",
]

MAX_CELLS = 1 << 20
"""Cells of groups that a worker keeps by default: some 32 MiB."""

_WHOLE = 1 << 64
"""One more than the largest hash."""

_LEAST = float(np.finfo(np.float64).eps)


class PlacesError(ContractError):
    """A metric was to count no places of a ranking."""

    code = "contract.places"
    k: int
    sentence = "at_k(k={k}): must be 1 or more, the places of a ranking that count"


def log_losses(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log loss of each example, in nats: ``-(y ln p + (1 - y) ln(1 - p))``.

    Args:
        scores: Probabilities p, float [n]; they count as at least 2.2e-16 from 0 and 1, as
            scikit-learn's. A NaN has a loss of NaN.
        labels: y, [n], positive above 0.5.

    Returns:
        float64 [n].
    """
    p = np.clip(np.asarray(scores, np.float64), _LEAST, 1 - _LEAST)
    return -np.where(np.asarray(labels) > 0.5, np.log(p), np.log1p(-p))


def entropy(rate: float) -> float:
    """Return the log loss of the rate of clicks itself, in nats: 0 if it is 0 or 1.

    It is ``-(c ln c + (1 - c) ln(1 - c))``, what a model loses that says c of every example.
    """
    if not 0 < rate < 1:
        return 0.0
    return float(-(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)))


class AtK(NamedTuple):
    """Sums over queries that have something relevant."""

    recall: float
    """Of each query's recall among its k best candidates."""
    ndcg: float
    """Of each query's normalised discounted cumulative gain of these."""
    queries: int


def at_k(scores: NDArray[np.float64], labels: NDArray[np.float64], k: int) -> AtK:
    """Sum recall@k and NDCG@k over queries, each with as many candidates.

    Candidates of one score share the places that they have together, so that the order in
    which they come says nothing, as in scikit-learn's ``ndcg_score``. The gain of a candidate
    is its label, and the discount of place i, from 1, is ``1 / log2(i + 1)`` (Järvelin and
    Kekäläinen, 2002). Queries without a positive label count in neither.

    Args:
        scores: float [Q, C]; -inf marks a place without a candidate.
        labels: Relevance, [Q, C], none negative; relevant above 0.5 for the recall.
        k: Places that count, at least 1.

    Raises:
        PlacesError: if ``k`` is less.
    """
    if k < 1:
        raise PlacesError(k=k)
    gains = np.asarray(labels, np.float64)
    relevant = gains > 0.5
    chosen = relevant.any(axis=1)
    scores, gains = np.asarray(scores, np.float64)[chosen], gains[chosen]
    wanted = relevant[chosen].astype(np.float64)
    if not len(scores):
        return AtK(0.0, 0.0, 0)
    k = min(k, scores.shape[1])
    order = np.argsort(-scores, axis=1, kind="stable")
    ordered = np.take_along_axis(scores, order, axis=1)
    hits = _shared(ordered, np.take_along_axis(wanted, order, axis=1))[:, :k]
    found = _shared(ordered, np.take_along_axis(gains, order, axis=1))[:, :k]
    discounts = 1 / np.log2(np.arange(2, k + 2))
    best = -np.sort(-gains, axis=1)[:, :k] @ discounts
    return AtK(
        recall=float(np.sum(hits.sum(axis=1) / wanted.sum(axis=1))),
        ndcg=float(np.sum(found @ discounts / best)),
        queries=len(scores),
    )


def _shared(ordered: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values [Q, C] where each is the mean of those with the same score in its row."""
    begins = np.ones(ordered.shape, bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    number = np.cumsum(begins.ravel()) - 1
    sums = np.bincount(number, weights=values.ravel())
    means: NDArray[np.float64] = (sums / np.bincount(number))[number]
    return means.reshape(ordered.shape)


class GroupCells:
    """How many examples of each group and each bucket of scores were positive, and negative.

    A group is a user, or whatever has an id. Memory is bounded: where there are more cells
    than ``max_cells``, half of the groups are forgotten, by a hash of their ids alone, and
    that as often as it takes. What stays are whole groups, the same in every worker, so that
    the metric is that of a random part of the groups.

    Args:
        num_buckets: Equal parts of [0, 1]; scores in one count as tied.
        max_cells: The most cells that stay.
    """

    def __init__(self, num_buckets: int, max_cells: int = MAX_CELLS) -> None:
        self.num_buckets = num_buckets
        self._max_cells = max_cells
        self.below = _WHOLE
        """Groups stay whose hash is below this."""
        self.groups = np.empty(0, np.int64)
        """int64 [cells], in order; cells of one group in the order of their buckets."""
        self.buckets = np.empty(0, np.int64)
        self.counts = np.empty((2, 0), np.int64)
        """int64 [2, cells]: negatives, positives."""

    @property
    def share(self) -> float:
        """Return which part of the groups stays: 1, or a power of a half."""
        return self.below / _WHOLE

    def update(
        self,
        groups: NDArray[np.int64],
        scores: NDArray[np.float64],
        labels: NDArray[np.float64],
    ) -> None:
        """Count examples.

        Args:
            groups: Ids, int64 [n].
            scores: Probabilities in [0, 1], [n]; a NaN counts as 0.
            labels: [n], positive above 0.5.
        """
        kept = np.clip(np.nan_to_num(np.asarray(scores, np.float64)), 0, 1)
        buckets = (kept * self.num_buckets).astype(np.int64)
        positive = np.asarray(labels) > 0.5
        self._add(np.asarray(groups, np.int64), buckets, np.stack([~positive, positive]))

    def merge(self, other: "GroupCells") -> None:
        """Add what another one has, of as many buckets; it stays as it is."""
        self.limit(other.below)
        self._add(other.groups, other.buckets, other.counts)

    def limit(self, below: int) -> None:
        """Forget groups whose hash isn't below ``below``."""
        if below < self.below:
            self.below = below
            self._keep(self._are_below(self.groups))

    def part(self, number: int, parts: int) -> "GroupCells":
        """Return the cells of one of so many parts of the groups, by their hash."""
        found = GroupCells(self.num_buckets, self._max_cells)
        found.below = self.below
        chosen = _hash(self.groups) % np.uint64(parts) == np.uint64(number)
        found.groups, found.buckets = self.groups[chosen], self.buckets[chosen]
        found.counts = self.counts[:, chosen]
        return found

    def _add(
        self, groups: NDArray[np.int64], buckets: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        chosen = self._are_below(groups)
        ids = np.concatenate([self.groups, groups[chosen]])
        places = np.concatenate([self.buckets, buckets[chosen]])
        numbers = np.concatenate([self.counts, counts[:, chosen].astype(np.int64)], axis=1)
        if not len(ids):
            return
        order = np.lexsort((places, ids))
        ids, places, numbers = ids[order], places[order], numbers[:, order]
        begins = np.ones(len(ids), bool)
        begins[1:] = (ids[1:] != ids[:-1]) | (places[1:] != places[:-1])
        first = np.flatnonzero(begins)
        self.groups, self.buckets = ids[first], places[first]
        self.counts = np.add.reduceat(numbers, first, axis=1)
        while len(self.groups) > self._max_cells and self.below > 1:
            self.limit(self.below // 2)

    def _are_below(self, groups: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self.below == _WHOLE:
            return np.ones(len(groups), bool)
        return _hash(groups) < np.uint64(self.below)

    def _keep(self, chosen: NDArray[np.bool_]) -> None:
        self.groups, self.buckets = self.groups[chosen], self.buckets[chosen]
        self.counts = self.counts[:, chosen]


def group_auc(cells: GroupCells) -> tuple[float, float]:
    """Return the sum of each group's AUC times its examples, and how many these are.

    Groups with one class alone have no AUC, and count in neither.
    """
    if not len(cells.groups):
        return 0.0, 0.0
    first = np.flatnonzero(np.r_[True, cells.groups[1:] != cells.groups[:-1]])
    negative, positive = cells.counts.astype(np.float64)
    sums = np.add.reduceat(cells.counts.astype(np.float64), first, axis=1)
    seen = np.cumsum(negative)
    before = np.repeat(seen[first] - negative[first], np.diff([*first, len(seen)]))
    wins = np.add.reduceat(positive * (seen - before - negative / 2), first)
    has_both = (sums[0] > 0) & (sums[1] > 0)
    of_all = sums[:, has_both]
    weight = of_all.sum(axis=0)
    areas = wins[has_both] / (of_all[0] * of_all[1])
    return float(np.sum(areas * weight)), float(np.sum(weight))


def _hash(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a number for each id in which all of its bits count (splitmix64)."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
