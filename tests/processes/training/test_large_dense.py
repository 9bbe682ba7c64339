"""Dense parameters that no one request carries: they go in pieces, in every mode."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_large.py"
DIVIDED = {"PARAMFLEET_WORKER__DENSE_REQUEST_BYTES": "4096"}
"""With pieces of 256 values."""
IN_PLACE = {"PARAMFLEET_WORKER__DENSE_IN_PLACE_BYTES": "0"}


@pytest.mark.parametrize(
    ("mode", "wire_dtype", "workers"),
    [
        ("sync", "int8", 2),
        ("async", "float32", 2),
        ("geo", "bfloat16", 2),
        ("localsgd", "float32", 1),  # whose result is a matter of time with more
    ],
)
def test_divided_requests_end_with_the_same_bits(
    jobs: Any, mode: str, wire_dtype: str, workers: int
) -> None:
    args = ["--mode", mode, "--wire_dtype", wire_dtype]

    whole = jobs.run(SCRIPT, *args, workers=workers).results
    divided = jobs.run(SCRIPT, *args, workers=workers, **DIVIDED).results

    assert all(result["pieces"] == 0 for result in whole)
    assert all(result["pieces"] > 4096 for result in divided)
    digests = {tuple(result["digests"]) for result in whole + divided}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("mode", "optimizer", "workers"),
    [
        ("async", "sgd", 2),
        ("async", "adam", 1),
        ("geo", "sgd", 2),
        ("localsgd", "sgd", 1),  # whose result is a matter of time with more
    ],
)
def test_tables_that_move_in_place_end_with_the_same_bits(
    jobs: Any, mode: str, optimizer: str, workers: int
) -> None:
    args = ["--mode", mode, "--optimizer", optimizer]

    copied = jobs.run(SCRIPT, *args, workers=workers).results
    in_place = jobs.run(SCRIPT, *args, workers=workers, **DIVIDED, **IN_PLACE).results

    assert all(result["pieces"] < 2 * 4 * 20_001 for result in in_place), "only first values"
    assert len({tuple(result["digests"]) for result in copied + in_place}) == 1


@pytest.mark.parametrize("mode", ["async", "geo", "localsgd"])
def test_what_moves_in_place_is_saved_and_loaded(jobs: Any, mode: str, tmp_path: Path) -> None:
    """The script looks at what it loads, and a load of the same changes nothing."""
    args, saves = ["--mode", mode], ["--save", str(tmp_path / "saved")]

    copied = jobs.run(SCRIPT, *args, workers=1).results
    in_place = jobs.run(SCRIPT, *args, *saves, workers=1, **DIVIDED, **IN_PLACE).results

    assert len({tuple(result["digests"]) for result in copied + in_place}) == 1


@pytest.mark.parametrize(("mode", "most"), [("async", 12), ("geo", 16), ("localsgd", 16)])
def test_a_worker_keeps_no_copies_of_what_moves_in_place(
    jobs: Any, mode: str, most: float
) -> None:
    """Parameters and gradients take 8 bytes a value, and what was agreed on 4; what is loaded
    and on its way take 2 or 3 of so few values."""
    args = ["--mode", mode, "--values", "48000001", "--steps", "2"]
    pieces = {"PARAMFLEET_WORKER__DENSE_REQUEST_BYTES": str(8 << 20)}

    (worker,) = jobs.run(SCRIPT, *args, workers=1, **pieces, **IN_PLACE).results

    assert worker["ends"] == [0.5 - 0.25 * (0 + 3), 0.5 - 0.25 * (0 + 3)]
    assert worker["bytes_a_value"] <= most
    assert worker["longest_pause_s"] <= 0.1


def test_a_divided_model_with_state_is_saved_and_loaded(jobs: Any, tmp_path: Path) -> None:
    args = ["--optimizer", "adam", "--save"]

    whole = jobs.run(SCRIPT, *args, str(tmp_path / "whole")).results
    divided = jobs.run(SCRIPT, *args, str(tmp_path / "divided"), **DIVIDED).results

    assert len({tuple(result["digests"]) for result in whole + divided}) == 1


def test_no_event_loop_waits_for_a_table_beyond_any_request(jobs: Any, tmp_path: Path) -> None:
    """80 million values of one pserver: 320 MB, of which a body carries 256 MiB."""
    args = ["--values", "80000000", "--steps", "2", "--save", str(tmp_path / "save")]

    ended = jobs.run(SCRIPT, *args, workers=1, servers=1, PARAMFLEET_LEASE_TTL_S="4")

    (worker,) = ended.results
    server = ended.last_json("pserver0")
    assert worker["ends"] == [0.5 - 0.25 * (0 + 3), 0.5 - 0.25 * (7 + 2)]
    assert worker["longest_pause_s"] <= 0.1
    assert server["longest_pause_s"] <= 0.1
