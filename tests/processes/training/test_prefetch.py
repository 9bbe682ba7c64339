"""What ``fleet.prefetch`` leaves as it is, by whole jobs of real processes."""

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_tiny.py"
STEPS = 20


def far(a: dict[str, Any], b: dict[str, Any], key: str) -> float:
    return float(np.abs(np.subtract(a[key], b[key])).max())


@pytest.mark.parametrize("ids", ["watch", "name", "wrong"])
def test_sync_equals_one_process_whatever_was_prefetched(jobs: Any, ids: str) -> None:
    args = ["--mode", "sync", "--optimizer", "adam", "--steps", str(STEPS)]
    alone = jobs.local_once(SCRIPT, *args)

    results = jobs.run(SCRIPT, *args, "--prefetch", ids, "--depth", "2").results

    for result in results:
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "dense") <= 1e-5
        assert far(result, alone, "rows") <= 1e-5
        assert result["dense"] == results[0]["dense"]
        assert result["prefetch_misses"] == (STEPS if ids == "wrong" else 0)


@pytest.mark.parametrize("fresh", ["0", "50"])
def test_async_learns_from_rows_that_were_prefetched(jobs: Any, fresh: str) -> None:
    args = ["--mode", "async", "--steps", "150", "--prefetch", "watch", "--fresh_steps", fresh]

    first, second = jobs.run(SCRIPT, *args).results

    assert np.mean(first["losses"][-20:]) < np.mean(first["losses"][:20]) - 0.01
    assert far(first, second, "rows") <= 1e-5
    assert first["prefetch_misses"] == second["prefetch_misses"] == 0


@pytest.mark.parametrize("fresh", ["0", "30"])
def test_a_staleness_bound_holds_for_rows_that_were_prefetched(jobs: Any, fresh: str) -> None:
    args = ["--mode", "async", "--max_staleness", "2", "--steps", "60", "--fresh_steps", fresh]

    results = jobs.run(SCRIPT, *args, "--prefetch", "watch", "--depth", "3").results

    for result in results:
        assert result["staleness_p99"] <= 3, "a step may begin two ahead of a finished one"
        assert result["prefetch_misses"] == 0


def test_geo_is_what_it_is_without(jobs: Any) -> None:
    args = ["--mode", "geo", "--steps", "12"]

    (plain,) = jobs.run(SCRIPT, *args, workers=1, servers=1).results
    (ahead,) = jobs.run(SCRIPT, *args, "--prefetch", "watch", workers=1, servers=1).results

    assert far(plain, ahead, "losses") <= 1e-6
    assert ahead["prefetch_misses"] == 0
