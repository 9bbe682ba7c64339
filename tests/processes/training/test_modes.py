"""The promises of the modes, kept by whole jobs of real processes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_tiny.py"


def far(a: dict[str, Any], b: dict[str, Any], key: str) -> float:
    return float(np.abs(np.subtract(a[key], b[key])).max())


SIZES = [(1, 1), (1, 3), (2, 2), (4, 1), (4, 3)]
"""Of jobs in which each optimizer of pservers trains a model of its own (``each``)."""


@pytest.mark.parametrize(
    ("optimizer", "workers", "servers"), [("adam", 2, 2), *(("each", *n) for n in SIZES)]
)
def test_sync_equals_one_process(jobs: Any, optimizer: str, workers: int, servers: int) -> None:
    args = ["--mode", "sync", "--optimizer", optimizer]
    alone = jobs.local_once(SCRIPT, *args)

    results = jobs.run(SCRIPT, *args, workers=workers, servers=servers).results

    for result in results:
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "dense") <= 1e-5
        assert far(result, alone, "rows") <= 1e-5
        assert result["staleness_p99"] == 0
        assert result == results[0], "all workers hold the same to the bit"


@pytest.mark.parametrize(("mode", "workers", "bound"), [("sync", 2, 1e-6), ("geo", 1, 1e-5)])
def test_several_optimizers_equal_those_of_one_process(
    jobs: Any, mode: str, workers: int, bound: float
) -> None:
    args = ["--mode", mode, "--optimizer", "several"]
    alone = jobs.local_once(SCRIPT, *args)

    results = jobs.run(SCRIPT, *args, workers=workers).results

    for result in results:
        assert far(result, alone, "losses") <= bound
        assert far(result, alone, "dense") <= 1e-5
        assert far(result, alone, "rows") <= 1e-5


@pytest.mark.parametrize(
    ("rule", "cvm", "workers", "servers"),
    [("SparseAdaGradSGDRule", True, 3, 1), ("SparseSharedAdamSGDRule", False, 2, 2)],
)
def test_sync_with_accessors_equals_one_process(
    jobs: Any, rule: str, cvm: bool, workers: int, servers: int
) -> None:
    args = ["--mode", "sync", "--accessor", rule, *["--cvm"] * cvm]
    alone = jobs.local_once(SCRIPT, *args)

    results = jobs.run(SCRIPT, *args, workers=workers, servers=servers).results

    assert len(set(alone["losses"])) > 10
    for result in results:
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "dense") <= 1e-5
        assert far(result, alone, "rows") <= 1e-5


def test_sync_loses_the_rows_that_one_process_does(jobs: Any) -> None:
    args = ["--mode", "sync", "--accessor", "SparseAdaGradSGDRule", "--batch", "16"]
    args += ["--steps", "30", "--days", "6"]
    alone = jobs.local_once(SCRIPT, *args)
    assert sum(sum(each.values()) for each in alone["gone"]) > 10

    for result in jobs.run(SCRIPT, *args, workers=2, servers=2).results:
        assert result["gone"] == alone["gone"]
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "rows") <= 1e-5


@pytest.mark.parametrize(
    ("entry", "workers", "servers"), [("count:4", 2, 2), ("share:0.4", 3, 1)]
)
def test_sync_with_entries_equals_one_process(
    jobs: Any, entry: str, workers: int, servers: int
) -> None:
    args = ["--mode", "sync", "--optimizer", "adam", "--entry", entry]
    alone = jobs.local_once(SCRIPT, *args)
    plain = jobs.local_once(SCRIPT, *args[:-2])
    assert far(alone, plain, "losses") > 1e-5, "some ids have no row"

    for result in jobs.run(SCRIPT, *args, workers=workers, servers=servers).results:
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "dense") <= 1e-5
        assert far(result, alone, "rows") <= 1e-5


EVICTIONS = {
    "unseen": {"unseen_steps": 3, "every_steps": 5},
    "full": {"max_rows": 320, "headroom": 0.9, "every_steps": 4},
}


@pytest.mark.parametrize(("evicts", "workers", "servers"), [("unseen", 2, 2), ("full", 3, 1)])
def test_sync_that_evicts_rows_equals_one_process(
    jobs: Any, evicts: str, workers: int, servers: int
) -> None:
    args = ["--mode", "sync", "--optimizer", "adagrad", "--batch", "12"]
    evict = ["--evict", json.dumps(EVICTIONS[evicts])]
    alone = jobs.local_once(SCRIPT, *args, *evict)
    plain = jobs.local_once(SCRIPT, *args)
    assert far(alone, plain, "losses") > 1e-5, "some rows went"

    for result in jobs.run(SCRIPT, *args, *evict, workers=workers, servers=servers).results:
        assert far(result, alone, "losses") <= 1e-6
        assert far(result, alone, "dense") <= 1e-5
        assert far(result, alone, "rows") <= 1e-5


def test_async_evicts_rows_whatever_worker_s_turn_it_is(jobs: Any) -> None:
    evict = {"max_rows": 160, "every_steps": 3, "unseen_steps": 40}
    args = ["--mode", "async", "--steps", "60", "--evict", json.dumps(evict)]
    ended = jobs.run(SCRIPT, *args, workers=2)
    for result in ended.results:
        assert 0 < np.mean(result["losses"][-10:]) < np.mean(result["losses"][:10])


def test_async_with_accessors_counts_every_show(jobs: Any) -> None:
    args = ["--accessor", "SparseAdaGradSGDRule", "--cvm", "--steps", "40"]
    alone = jobs.local_once(SCRIPT, "--mode", "sync", *args)

    for result in jobs.run(SCRIPT, "--mode", "async", *args, workers=2).results:
        rows = [np.reshape(each["rows"], (200, 9)) for each in (result, alone)]
        counts, expected = (each[:, [0, 1, 6, 7]] for each in rows)  # of both tables
        assert counts.any()
        np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize(
    "args",
    [
        ["--accessor", "SparseSharedAdamSGDRule", "--days", "6", "--batch", "16"],
        ["--entry", "count:4", "--optimizer", "adagrad", "--evict", '{"unseen_steps": 9}'],
    ],
)
def test_geo_with_one_worker_counts_and_admits_as_one_process(
    jobs: Any, args: list[str]
) -> None:
    args = ["--mode", "geo", "--k_steps", "1", *args]
    alone = jobs.local_once(SCRIPT, *args)

    (result,) = jobs.run(SCRIPT, *args, workers=1, servers=2).results

    assert result["gone"] == alone["gone"]
    for key in ("losses", "dense", "rows"):
        assert far(result, alone, key) <= 1e-5


def test_geo_with_accessors_counts_every_show(jobs: Any) -> None:
    args = ["--accessor", "SparseAdaGradSGDRule", "--cvm", "--steps", "40"]
    alone = jobs.local_once(SCRIPT, "--mode", "sync", *args)

    ended = jobs.run(SCRIPT, "--mode", "geo", *args, "--message_values", "512", workers=3)

    for result in ended.results:
        rows = [np.reshape(each["rows"], (200, 9)) for each in (result, alone)]
        counts, expected = (each[:, [0, 1, 6, 7]] for each in rows)  # of both tables
        np.testing.assert_array_equal(counts, expected)
        assert far(result, ended.results[0], "rows") <= 1e-5


def test_each_worker_logs_which_mode_it_trains_in_and_why(jobs: Any) -> None:
    ended = jobs.run(SCRIPT, "--mode", "async", "--steps", "2", workers=2, servers=1)

    for rank in (0, 1):
        (line,) = [x for x in ended.logs[f"worker{rank}"].splitlines() if "worker.trains" in x]
        facts = "mode=async chosen_by='a_sync = True' servers=1 workers=2"
        assert line.endswith(f"INFO worker/{rank} worker.trains {facts}"), ended.story()


def test_sync_pulls_no_rows_of_small_tables_once_all_were_seen(jobs: Any) -> None:
    short = jobs.run(SCRIPT, "--steps", "30", "--traffic").results
    long = jobs.run(SCRIPT, "--steps", "60", "--traffic").results

    for few, many in zip(short, long, strict=True):
        assert many["sent"]["pull"] == few["sent"]["pull"], "each id is pulled at its first use"
        assert many["sent"]["step"] > few["sent"]["step"]


def test_sync_goes_on_when_a_worker_has_less_data(jobs: Any) -> None:
    first, second = jobs.run(SCRIPT, "--mode", "sync", "--uneven", "5").results

    assert len(first["losses"]) == len(second["losses"]) + 5
    assert first["dense"] == second["dense"]


@pytest.mark.parametrize("optimizer", ["sgd", "each"])
def test_async_learns_and_ends_with_the_same_values(jobs: Any, optimizer: str) -> None:
    args = ["--optimizer", optimizer, "--steps", "150"]

    first, second = jobs.run(SCRIPT, "--mode", "async", *args).results

    losses = np.reshape(first["losses"], (150, -1))  # those of each model
    assert (losses[-20:].mean(0) < losses[:20].mean(0) - 0.01).all()
    assert far(first, second, "dense") <= 1e-5
    assert far(first, second, "rows") <= 1e-5


@pytest.mark.parametrize("fresh", ["0", "30"])
def test_async_with_a_staleness_bound_keeps_it(jobs: Any, fresh: str) -> None:
    args = ["--max_staleness", "2", "--fresh_steps", fresh, "--steps", "60"]

    results = jobs.run(SCRIPT, "--mode", "async", *args).results

    for result in results:
        assert result["staleness_p99"] <= 3, "a step may begin two ahead of a finished one"


@pytest.mark.parametrize(
    ("optimizer", "merge"),
    [("sgd", "damped"), ("sgd", "remainder"), ("sgd", "average"), ("rmsprop", "average")],
)
def test_geo_ends_with_the_same_values_everywhere(
    jobs: Any, optimizer: str, merge: str, tmp_path: Path
) -> None:
    args = ["--optimizer", optimizer, "--geo_merge", merge, "--steps", "63"]

    results = jobs.run(SCRIPT, "--mode", "geo", *args, workers=3).results

    for result in results[1:]:
        assert far(result, results[0], "dense") <= 1e-5
        assert far(result, results[0], "rows") <= 1e-5


def test_geo_divides_an_exchange_that_is_too_large_for_one_message(jobs: Any) -> None:
    args = ["--mode", "geo", "--steps", "40", "--message_values", "64", "--traffic"]

    results = jobs.run(SCRIPT, *args).results

    for result in results:
        told, said = result["received"]["exchange"], result["sent"]["exchange"]
        assert told < 0.9 * said, "pservers tell once all is said, or it would be for nothing"

    assert far(results[0], results[1], "dense") <= 1e-5
    assert far(results[0], results[1], "rows") <= 1e-5


@pytest.mark.parametrize("optimizer", ["sgd", "each"])
def test_geo_with_one_worker_equals_local_training(jobs: Any, optimizer: str) -> None:
    args = ["--mode", "geo", "--optimizer", optimizer]
    alone = jobs.local_once(SCRIPT, *args)

    (result,) = jobs.run(SCRIPT, *args, workers=1).results

    assert far(result, alone, "losses") <= 1e-5
    assert far(result, alone, "dense") <= 1e-5
    assert far(result, alone, "rows") <= 1e-5
