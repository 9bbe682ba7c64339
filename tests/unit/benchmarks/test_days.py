"""The made-up days of ``days.py``, and what it says of them."""

import os
from argparse import Namespace

import numpy as np
import pytest

from days import Run, memory_mb, summary_of
from drifting import BATCH, PER_SLOT, SLOTS, Days, auc_of
from peer.children import ChildFailedError


def test_days_are_the_same_for_all_and_their_ids_drift() -> None:
    days = Days(5 * BATCH, alive=1000, new=0.2)
    first, later = ([ids for ids, _ in days.batches(day)] for day in (0, 10))

    again = [ids for ids, _ in Days(5 * BATCH, alive=1000, new=0.2).batches(10)]
    np.testing.assert_array_equal(later, again)
    for slot in range(SLOTS):
        newest = [max(ids[:, slot].max() for ids in each) for each in (first, later)]
        assert all(slot * PER_SLOT <= each < (slot + 1) * PER_SLOT for each in newest)
        assert 1500 < newest[1] - newest[0] < 2500
    _, labels = next(days.batches(0))
    assert labels.shape == (BATCH,)
    assert set(labels.tolist()) == {0.0, 1.0}


def test_the_area_under_the_curve_counts_pairs_in_order() -> None:
    random = np.random.default_rng(1)
    labels = (random.random(200) < 0.3).astype(np.float32)
    scores = random.random(200).astype(np.float32)
    pairs = scores[labels > 0][:, None] > scores[labels == 0][None, :]
    assert auc_of(labels, scores) == pairs.mean()


def test_the_memory_of_pservers_that_are_not_found_is_an_error() -> None:
    with pytest.raises(ChildFailedError, match="has no pservers"):
        memory_mb(os.getpid())


def test_the_last_line_compares_both_trainings() -> None:
    options = Namespace(days=4, samples=100, max_rows=50)
    plain = Run(auc=[0.5, 0.6, 0.7, 0.8], rows=[10, 90, 95, 99], memory_mb=[1.0, 2, 3, 4])
    evicts = Run(
        auc=[0.5, 0.6, 0.7, 0.7],
        rows=[10, 60, 50, 55],
        memory_mb=[1.0, 2, 2, 2],
        would=7,
        gone=7,
    )
    said = summary_of(options, plain, evicts)
    assert (said["auc_all_rows"], said["auc_gap"]) == (0.65, 0.025)
    assert (said["rows_all"], said["rows_evicting_most"]) == (99, 60)
    assert said["memory_flat_mb"] == [1.0, 2]
    assert said["dry_run"] == said["gone"] == 7
