"""Metrics of clicks and of rankings, over workers, against plain formulas."""

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.unit.client.api.test_together import together

from paramfleet.telemetry.job_metrics import Metrics
from paramfleet.telemetry.quality import GroupCells, PlacesError, at_k, group_auc, log_losses

Array = NDArray[Any]
NUM = 4000


def clicks(seed: int = 1) -> tuple[Array, Array, Array]:
    """Return scores, labels and groups of examples, [n] each."""
    random = np.random.default_rng(seed)
    labels = (random.random(NUM) < 0.2).astype(np.float64)
    scores = np.clip(random.beta(1, 4, NUM) + 0.1 * labels, 0, 1)
    return scores, labels, random.zipf(1.5, NUM).clip(max=300) - 150


def auc_of(scores: Array, labels: Array) -> float:
    """Return the share of pairs in order; a tie is half a pair."""
    apart = scores[labels > 0.5][:, None] - scores[labels <= 0.5]
    return float(((apart > 0) + 0.5 * (apart == 0)).mean())


def gauc_of(scores: Array, labels: Array, groups: Array) -> float:
    areas, weights = [], []
    for group in np.unique(groups):
        own = groups == group
        if 0 < labels[own].sum() < own.sum():
            areas.append(auc_of(scores[own], labels[own]))
            weights.append(own.sum())
    return float(np.average(areas, weights=weights))


def over(workers: int, act: Callable[[Metrics, slice], float]) -> float:
    """Return what all workers find, each of its part of the examples."""
    found = together(
        workers,
        lambda rank, util: act(
            Metrics(util.all_reduce, util.all_gather), slice(rank, None, workers)
        ),
    )
    assert not [each for each in found if isinstance(each, Exception)], found
    assert len(set(found)) == 1, "the same in every worker"
    return float(found[0])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_log_loss_and_its_relatives_are_those_of_all_examples(workers: int) -> None:
    scores, labels, _ = clicks()
    loss = -np.mean(labels * np.log(scores) + (1 - labels) * np.log(1 - scores))
    rate = labels.mean()
    of_rate = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))

    def sums(part: slice) -> tuple[float, float, int]:
        losses = log_losses(scores[part], labels[part])
        return losses.sum(), labels[part].sum(), len(losses)

    def log_loss(metrics: Metrics, part: slice) -> float:
        lost, _, total = sums(part)
        return metrics.log_loss(lost, total)

    assert over(workers, log_loss) == pytest.approx(loss, rel=1e-12)
    entropy = over(workers, lambda metrics, part: metrics.normalized_entropy(*sums(part)))
    assert entropy == pytest.approx(loss / of_rate, rel=1e-12)
    calibration = over(
        workers,
        lambda metrics, part: metrics.calibration(scores[part].sum(), labels[part].sum()),
    )
    assert calibration == pytest.approx(scores.sum() / labels.sum(), rel=1e-12)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_groups_area_is_of_its_examples_in_all_workers(workers: int) -> None:
    scores, labels, groups = clicks()
    buckets = 1 << 12

    def gauc(metrics: Metrics, part: slice) -> float:
        cells = GroupCells(buckets)
        for begin in range(0, NUM, 300):  # batch by batch
            batch = slice(begin, begin + 300)
            cells.update(groups[part][batch], scores[part][batch], labels[part][batch])
        return metrics.gauc(cells)

    expected = gauc_of(np.floor(scores * buckets), labels, groups)
    assert over(workers, gauc) == pytest.approx(expected, rel=1e-12)


def test_cells_that_come_in_several_parts_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores, labels, groups = clicks()

    def gauc(metrics: Metrics, part: slice) -> float:
        cells = GroupCells(100)
        cells.update(groups[part], scores[part], labels[part])
        return metrics.gauc(cells)

    whole = over(2, gauc)
    monkeypatch.setattr(sys.modules[Metrics.__module__], "_CELLS_AT_ONCE", 200)

    assert over(2, gauc) == pytest.approx(whole, rel=1e-12)


def test_beyond_its_memory_it_is_the_area_of_a_part_of_the_groups_in_every_worker() -> None:
    scores, labels, _ = clicks()
    groups = np.arange(NUM) // 8
    most = [400, 1 << 20]

    def gauc(metrics: Metrics, part: slice) -> float:
        cells = GroupCells(1 << 12, most[part.start])
        for begin in range(0, NUM, 100):
            batch = slice(begin, begin + 100)
            cells.update(groups[part][batch], scores[part][batch], labels[part][batch])
        assert len(cells.groups) <= most[part.start]
        return metrics.gauc(cells)

    small = GroupCells(1 << 12, 400)
    small.update(groups[0::2], scores[0::2], labels[0::2])
    assert small.share == 0.125
    stays = np.isin(groups, np.unique(small.groups))
    expected = gauc_of(np.floor(scores[stays] * 4096), labels[stays], groups[stays])
    assert over(2, gauc) == pytest.approx(expected, rel=1e-12)


def at_k_plain(scores: Array, labels: Array, k: int) -> tuple[float, float]:
    """Return recall@k and NDCG@k of a query whose scores all differ."""
    order = np.argsort(-scores)[:k]
    discounts = 1 / np.log2(np.arange(len(order)) + 2)
    best = np.sort(labels)[::-1][:k]
    recall = (labels[order] > 0.5).sum() / (labels > 0.5).sum()
    return float(recall), float((labels[order] * discounts).sum() / (best * discounts).sum())


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_rankings_are_judged_over_the_queries_of_all_workers(workers: int) -> None:
    random = np.random.default_rng(3)
    scores = random.random((100, 30))
    kept = random.random((100, 30)) < 0.05
    labels = np.where(kept, random.integers(0, 4, (100, 30)), 0).astype(np.float64)
    asked = [q for q in range(100) if (labels[q] > 0.5).any()]
    assert len(asked) < 100
    expected = np.mean([at_k_plain(scores[q], labels[q], 5) for q in asked], axis=0)

    def recall(metrics: Metrics, part: slice) -> float:
        sums = at_k(scores[part], labels[part], 5)
        return metrics.recall_at_k(sums.recall, sums.queries)

    def ndcg(metrics: Metrics, part: slice) -> float:
        sums = at_k(scores[part], labels[part], 5)
        return metrics.ndcg_at_k(sums.ndcg, sums.queries)

    assert over(workers, recall) == pytest.approx(expected[0], rel=1e-12)
    assert over(workers, ndcg) == pytest.approx(expected[1], rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=5))
def test_tied_candidates_count_as_the_mean_of_all_orders(rows: list[tuple[int, int]]) -> None:
    from itertools import permutations  # noqa: PLC0415 - of this reference

    scores, labels = (np.array(each, np.float64) for each in zip(*rows, strict=True))
    sums = at_k(scores[None], labels[None], 2)
    if not (labels > 0.5).any():
        assert sums == (0.0, 0.0, 0)
        return
    orders = [
        np.array(order)
        for order in permutations(range(len(rows)))
        if (np.diff(scores[list(order)]) <= 0).all()
    ]
    found = [at_k_plain(np.arange(len(rows), 0, -1.0), labels[order], 2) for order in orders]

    assert (sums.recall, sums.ndcg) == pytest.approx(tuple(np.mean(found, axis=0)))


def test_a_place_without_a_candidate_changes_nothing() -> None:
    scores, labels = np.array([[0.5, 0.9, 0.1]]), np.array([[1.0, 0.0, 1.0]])
    padded = np.c_[scores, [[-np.inf]]], np.c_[labels, [[0.0]]]

    assert at_k(*padded, 10) == pytest.approx(at_k(scores, labels, 10))


def test_metrics_that_need_more_are_no_numbers() -> None:
    metrics = Metrics(lambda own, _: np.asarray(own))
    cells = GroupCells(10)
    assert group_auc(cells) == (0.0, 0.0)
    assert math.isnan(metrics.gauc(cells))
    cells.update(np.array([1, 1, 2]), np.array([0.1, 0.2, np.nan]), np.array([1, 1, 0]))

    assert math.isnan(metrics.gauc(cells)), "no group has both classes"
    assert math.isnan(metrics.log_loss(0, 0))
    assert math.isnan(metrics.normalized_entropy(0, 0, 0))
    assert math.isnan(metrics.normalized_entropy(0.5, 4, 4)), "one class alone has no entropy"
    assert math.isnan(metrics.calibration(1.0, 0))
    assert math.isnan(metrics.recall_at_k(0, 0))


def test_a_score_of_0_or_1_that_is_wrong_costs_a_number() -> None:
    losses = log_losses(np.array([0.0, 1.0, 1.0, np.nan]), np.array([1, 0, 1, 1]))

    assert losses[:3] == pytest.approx([36.04, 36.04, 0.0], abs=0.01)
    assert math.isnan(losses[3])


@pytest.mark.parametrize("k", [0, -3])
def test_no_places_of_a_ranking_are_refused(k: int) -> None:
    with pytest.raises(PlacesError, match=rf"at_k\(k={k}\): must be 1 or more"):
        at_k(np.ones((1, 2)), np.ones((1, 2)), k)
