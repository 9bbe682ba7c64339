"""Rows that scripts remove: ``fleet.remove_rows`` in whole jobs of real processes."""

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "remove_rows.py"


def far(a: dict[str, Any], b: dict[str, Any], key: str) -> float:
    return float(np.abs(np.subtract(a[key], b[key])).max())


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize(
    ("workers", "servers", "more"),
    [(1, 2, []), (2, 2, ["--prefetch"]), (3, 1, ["--by_rank", "first"])],
)
def test_sync_equals_one_process_also_where_rows_are_removed(
    jobs: Any, optimizer: str, workers: int, servers: int, more: list[str]
) -> None:
    args = ["--optimizer", optimizer, *more]
    alone = jobs.local_once(SCRIPT, *args)
    assert alone["removed"][0] == 40, "each id was trained before"

    results = jobs.run(SCRIPT, *args, workers=workers, servers=servers).results

    for result in results:
        assert result["removed"] == alone["removed"], "of all workers, the same in every one"
        assert result["begins_anew"]
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "dense") <= 1e-5
        assert far(result, alone, "rows") <= 1e-5
        assert result["rows"] == results[0]["rows"], "to the bit"


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_sync_stays_the_same_in_every_run_where_numbers_are_narrow(
    jobs: Any, wire: str
) -> None:
    args = ["--wire_dtype", wire, "--dim", "8"]

    once, again = (jobs.run(SCRIPT, *args).results for _ in range(2))

    assert once == again
    assert once[0]["begins_anew"]


def test_what_one_worker_of_sync_removes_alone_is_refused_and_all_go_on(jobs: Any) -> None:
    alone = jobs.local_once(SCRIPT)

    first, second = jobs.run(SCRIPT, "--wrong", workers=2, servers=2).results

    assert "before step 3: 1 of 2 workers called it" in first["problem"]
    assert "nothing was removed" in first["problem"]
    for result in (first, second):
        assert result["removed"] == alone["removed"]
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "rows") <= 1e-5


def test_workers_of_sync_that_remove_from_different_tables_learn_it_at_once(jobs: Any) -> None:
    alone = jobs.local_once(SCRIPT)

    first, second = jobs.run(SCRIPT, "--apart", workers=2, servers=2).results

    says = "before step 3: 1 of 2 workers called it, and others changed rows of"
    assert f"'rows') {says} 'more'" in first["problem"]
    assert f"'more') {says} 'rows'" in second["problem"]
    for result in (first, second):
        assert result["removed"] == alone["removed"]
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "rows") <= 1e-5


@pytest.mark.parametrize("more", [[], ["--prefetch"], ["--wire_dtype", "int8"]])
def test_async_ends_with_the_same_values_where_rows_are_removed(
    jobs: Any, more: list[str]
) -> None:
    first, second = jobs.run(SCRIPT, "--mode", "async", *more).results

    assert len(first["removed"]) == 4
    assert not second["removed"]
    assert far(first, second, "rows") <= 1e-5
    assert far(first, second, "dense") <= 1e-5


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_workers_of_geo_agree_at_the_end_where_one_removes_rows(
    jobs: Any, optimizer: str, wire: str
) -> None:
    args = ["--mode", "geo", "--optimizer", optimizer, "--wire_dtype", wire]

    first, second = jobs.run(SCRIPT, *args).results

    assert len(first["removed"]) == 4
    assert min(first["removed"]) > 0
    assert far(first, second, "rows") <= 1e-5
    assert far(first, second, "dense") <= 1e-5


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_a_removal_leaves_what_a_forward_has_computed(jobs: Any, mode: str) -> None:
    first, second = jobs.run(SCRIPT, "--mode", mode, "--late").results

    assert first["removed"][0] >= 1
    assert far(first, second, "rows") <= 1e-5
    assert far(first, second, "dense") <= 1e-5


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_new_rows_take_the_memory_of_removed_ones(jobs: Any, mode: str) -> None:
    (result,) = jobs.run("churn_rows.py", "--mode", mode, workers=1).results

    before, after = result["before"], result["after"]
    assert (before["rows"], after["rows"]) == (100_000, 100_000)
    assert result["kept"] == [10_000, 10_000]
    assert after["bytes"] <= 1.1 * before["bytes"]
