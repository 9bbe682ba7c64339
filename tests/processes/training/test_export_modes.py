"""Bases and deltas of whole jobs hold what those of one process do."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "export_modes.py"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_bases_and_deltas_equal_those_of_one_process(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    alone = jobs.local(SCRIPT, str(tmp_path / "alone"))
    assert alone["empty ads"] == [[], []]
    assert alone["base ads"] == [[0, 1, 2, 3, 4], []]
    assert alone["again ads"] == alone["base ads"]
    assert alone["delta ads"] == [[3, 4], [0]]
    assert alone["delta words"] == [[3, 4, 5, 6], [9]]
    assert alone["nothing ads"] == alone["nothing words"] == [[], []]
    assert alone["next ads"] == [[1, 2, 3, 4], []]

    folder = tmp_path / "exports"
    ended = jobs.run(SCRIPT, str(folder), "--mode", mode)

    for result in ended.results:
        assert result == alone
    (said,) = [
        each for each in ended.logs["worker0"].splitlines() if "base_without_rows" in each
    ]
    assert "none of its 4 rows has a score of at least base_threshold = 1.5" in said
    assert "it isn't known what changed" in ended.logs["worker0"]
    assert not (folder / "after a load").exists()
