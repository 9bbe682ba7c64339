"""Jobs whose numbers travel in fewer bytes."""

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_tiny.py"


def far(a: dict[str, Any], b: dict[str, Any], key: str) -> float:
    return float(np.abs(np.subtract(a[key], b[key])).max())


@pytest.mark.parametrize("wire", ["float16", "bfloat16", "int8", "float8_e4m3"])
def test_sync_stays_near_one_process_and_all_workers_hold_the_same(
    jobs: Any, wire: str
) -> None:
    args = ["--mode", "sync", "--steps", "20"]
    alone = jobs.local_once(SCRIPT, *args)

    first, second = jobs.run(SCRIPT, *args, "--wire_dtype", wire).results

    assert first == second
    assert first["losses"] != alone["losses"]
    bound = {"float16": 0.002, "bfloat16": 0.01, "int8": 0.03, "float8_e4m3": 0.1}[wire]
    assert far(first, alone, "losses") < bound
    assert far(first, alone, "rows") < 10 * bound


@pytest.mark.parametrize("wire", ["float16", "bfloat16", "int8", "float8_e4m3"])
def test_async_learns_and_ends_with_the_same_values(jobs: Any, wire: str) -> None:
    args = ["--mode", "async", "--steps", "150", "--wire_dtype", wire]

    first, second = jobs.run(SCRIPT, *args).results

    assert np.mean(first["losses"][-20:]) < np.mean(first["losses"][:20]) - 0.01
    assert first["dense"] == second["dense"]
    assert first["rows"] == second["rows"]


@pytest.mark.parametrize(
    ("wire", "merge"),
    [
        ("float16", "remainder"),
        ("bfloat16", "remainder"),
        ("int8", "remainder"),
        ("float8_e4m3", "remainder"),
        ("int8", "average"),
        ("int8", "damped"),
        ("float8_e4m3", "damped"),
    ],
)
def test_geo_learns_and_all_workers_end_with_exactly_the_same(
    jobs: Any, wire: str, merge: str
) -> None:
    args = ["--mode", "geo", "--steps", "100", "--wire_dtype", wire, "--geo_merge", merge]
    args += ["--message_values", "512"]

    first, second = jobs.run(SCRIPT, *args).results

    assert np.mean(first["losses"][-20:]) < np.mean(first["losses"][:20]) - 0.01
    assert first["dense"] == second["dense"]
    assert first["rows"] == second["rows"]


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_ids_that_the_pservers_forgot_are_sent_again(jobs: Any, wire: str) -> None:
    args = ["--mode", "sync", "--steps", "5", "--wire_dtype", wire]

    kept = jobs.run(SCRIPT, *args).results
    forgotten = jobs.run(SCRIPT, *args, "--max_pulls", "0").results

    assert forgotten == kept
