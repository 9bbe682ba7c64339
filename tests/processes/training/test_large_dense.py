"""Dense parameters that no one request carries: they go in pieces, in every mode."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_large.py"
DIVIDED = {"PARAMFLEET_WORKER__DENSE_REQUEST_BYTES": "4096"}
"""With pieces of 256 values."""


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
