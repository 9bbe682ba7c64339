"""Classes of ids have the sums that all ids have."""

import numpy as np
import pytest

from paramfleet_worker.core.planning.popularity import Popularity

IDS = 300_000


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.05, 2.0])
def test_sums_over_classes_are_sums_over_ids(exponent: float) -> None:
    weights = np.arange(1, IDS + 1, dtype=np.float64) ** -exponent
    shares = weights / weights.sum()
    popularity = Popularity.zipf(IDS, exponent)

    assert popularity.counts.sum() == pytest.approx(IDS)
    assert popularity.expected(popularity.shares) == pytest.approx(1.0)
    assert popularity.shares[0] == pytest.approx(shares[0], rel=1e-6)
    in_batch = 1.0 - np.exp(-10_000 * shares)
    assert popularity.expected(popularity.in_batch(10_000)) == pytest.approx(
        in_batch.sum(), rel=1e-4
    )
    hottest = popularity.hottest(50_000) * popularity.shares
    assert popularity.expected(hottest) == pytest.approx(shares[:50_000].sum(), rel=1e-3)


def test_any_number_of_ids_has_few_classes() -> None:
    assert Popularity.zipf(1, 1.05).shares.tolist() == [1.0]
    many = Popularity.zipf(1 << 60, 1.05)

    assert many.counts.size < 10_000
    assert many.expected(many.shares) == pytest.approx(1.0)
    assert many.counts.sum() == pytest.approx(float(1 << 60))
