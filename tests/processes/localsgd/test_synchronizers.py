"""Two gloo processes that synchronize in every way: one launch, many sentences."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.system.processes.keeping import tied

SCRIPT = Path(__file__).parent / "scripts" / "synchronize.py"

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.forked]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("group") / "store"
    workers = [
        subprocess.Popen(
            tied([sys.executable, "-W", "error", str(SCRIPT), str(rank), str(file)]),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [worker.communicate(timeout=250)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0]
    result: dict[str, Any] = json.loads(said[0].splitlines()[-1])
    return result


def test_synchronizing_after_each_step_equals_ddp(found: dict[str, Any]) -> None:
    assert found["ddp"] < 1e-6


@pytest.mark.parametrize("rule", ["keep", "average"])
def test_it_equals_ddp_with_momentum_too(found: dict[str, Any], rule: str) -> None:
    assert found["ddp_momentum"][rule] < 1e-6


@pytest.mark.parametrize(
    ("name", "bound"),
    [("float32", 1e-4), ("float16", 4e-3), ("int8", 0.1), ("float8_e4m3", 0.5)],
)
def test_forty_exchanges_add_up_to_one_rounding(
    found: dict[str, Any], name: str, bound: float
) -> None:
    assert found["narrow"][name]["error"] < bound
    assert found["narrow"][name]["spread"] == 0


def test_bytes_are_those_of_a_ring_or_of_both_halves(found: dict[str, Any]) -> None:
    # 3000 values in buckets of 525, padded to 1024 (the last 375 to 512), half of it each way
    padded = 5 * 1024 + 512
    narrow = padded + padded // 64
    expected = {"float32": 3000 * 4, "float16": padded * 2, "int8": narrow}
    expected |= {"float8_e4m3": narrow}
    assert {name: each["bytes"] for name, each in found["narrow"].items()} == expected


@pytest.mark.parametrize("way", ["overlap", "reset", "streaming", "int8", "adaptive"])
def test_all_workers_agree_in_the_end(found: dict[str, Any], way: str) -> None:
    assert found["ways"][way]["spread"] == 0
    assert found["ways"][way]["steps"] == 12


def test_streaming_exchanges_each_fragment_once_a_period(found: dict[str, Any]) -> None:
    assert found["ways"]["streaming"]["syncs"] == 3  # two periods, and the last of all


def test_running_statistics_are_averaged(found: dict[str, Any]) -> None:
    assert found["norm"]["before"] > 1e-3
    assert found["norm"]["after"] == 0
    assert found["norm"]["error"] < 1e-6


def test_a_restored_worker_goes_on_to_the_bit(found: dict[str, Any]) -> None:
    assert found["go_on"] == 0


def test_who_stays_away_is_named(found: dict[str, Any]) -> None:
    assert found["lost"]["missing"] == [1]
    assert "rank 1 didn't take part" in found["lost"]["sentence"]
    assert "the exchange of fragment 0" in found["lost"]["sentence"]
