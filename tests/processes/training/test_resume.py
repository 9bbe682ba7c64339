"""A job goes on where another one was: schedule, steps, and every sample once."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "resume.py"
PER_FILE = (24, 20, 17, 30)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "data").mkdir()
    names, first = [], 0
    for part, size in enumerate(PER_FILE):
        path = tmp_path / "data" / f"part-{part}"
        path.write_text("".join(f"1 {n}\n" for n in range(first, first + size)))
        names.append(str(path))
        first += size
    return names


def used(results: list[dict[str, Any]]) -> list[int]:
    return sorted(number for result in results for number in result["numbers"])


def test_sync_goes_on_at_the_exact_sample_with_any_number_of_workers(
    jobs: Any, tmp_path: Path, files: list[str]
) -> None:
    folder = str(tmp_path / "one")
    common = ["--files", *files, "--prefetch"]
    first = jobs.run(SCRIPT, *common, "--batches", "4", "--save", folder, workers=2, servers=1)
    assert all(result["steps"] == [0, 4] for result in first.results), first.story()
    three = jobs.run(SCRIPT, *common, "--load", folder, workers=3, servers=2).results
    two = jobs.run(SCRIPT, *common, "--server_load", folder, workers=2, servers=2).results
    alone = [jobs.local(SCRIPT, *common, "--load", folder)]

    for results in (three, two, alone):
        for result in results:
            assert result["steps"][0] == 4
            assert result["rates"][0] == 0.5**4
            assert result["lacking"] == []
        assert used(first.results + results) == list(range(sum(PER_FILE)))


@pytest.mark.parametrize("mode", ["async", "geo", "localsgd"])
def test_other_modes_go_on_too(jobs: Any, tmp_path: Path, files: list[str], mode: str) -> None:
    folder = str(tmp_path / "one")
    common = ["--files", *files, "--mode", mode]
    (first,) = jobs.run(
        SCRIPT, *common, "--batches", "4", "--save", folder, workers=1, servers=2
    ).results

    again = jobs.run(SCRIPT, *common, "--load", folder, workers=2, servers=1).results

    assert all(result["steps"][0] == 4 for result in again)
    assert all(result["rates"][0] == 0.5**4 for result in again)
    assert used([first, *again]) == list(range(sum(PER_FILE)))


def test_a_checkpoint_beside_the_training_goes_on_exactly(
    jobs: Any, tmp_path: Path, files: list[str]
) -> None:
    folder = tmp_path / "beside"
    common = ["--files", *files]
    jobs.run(SCRIPT, *common, "--beside", str(folder), "--batches", "6", workers=2, servers=1)
    (saved,) = folder.glob("*-step-5")

    again = jobs.run(SCRIPT, *common, "--load", str(saved), workers=2, servers=1).results

    assert all(result["steps"][0] == 5 for result in again)
    assert all(result["rates"][0] == 0.5**5 for result in again)
    assert len(used(again)) == sum(PER_FILE) - 2 * 5 * 4
