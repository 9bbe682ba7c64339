"""Some cells of the matrix of faults, and what the page says of all."""

from pathlib import Path

import pytest
from tests.matrix.cells import CELLS, Cell, judge
from tests.matrix.running import run_cell
from tests.matrix.table import BEGIN, END, PAGE, TEXT, read_table, render, with_table

from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.app.verify.plan import Mode

SHORT = [
    Cell("worker", "kill", "sync"),
    Cell("worker", "kill", "async"),
    Cell("pserver", "port reuse", "geo"),
    Cell("pserver", "clock +1 h", "localsgd"),
    Cell("coordinator", "kill", "localsgd"),
    Cell("redis", "kill", "sync"),
]
"""Those that needn't wait for a fault's end: what the run has time for."""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.forked
@pytest.mark.parametrize("cell", SHORT, ids=lambda cell: cell.name)
async def test_a_fault_is_recovered_from_or_named(tmp_path: Path, cell: Cell) -> None:
    outcome, ran = await run_cell(cell, tmp_path, SystemClock())

    assert outcome.is_right, (outcome, ran.problems, ran.last_words)


def test_the_page_has_every_cell() -> None:
    page = PAGE.read_text()
    said = read_table(page)

    assert with_table(page, said) == page
    assert {cell: text for cell, text in said.items() if not TEXT.fullmatch(text)} == {}
    assert {cell.name: text for cell, text in said.items() if text.startswith("WRONG")} == {}
    assert set(CELLS) == set(said)


def test_a_table_is_read_as_it_was_written() -> None:
    said = {
        cell: "recovers, 0.1 s" for cell in CELLS if not cell.why_not and cell.role != "redis"
    }

    written = with_table(f"before\n{BEGIN}\nolder\n{END}\nafter\n", said)

    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "older" not in written
    assert {
        cell: text for cell, text in read_table(written).items() if text[:4] != "none"
    } == said
    assert render(said).count("not run") == sum(
        cell.role == "redis" and not cell.why_not for cell in CELLS
    )
    with pytest.raises(ValueError, match="lacks"):
        with_table("no markers", said)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_end_has_to_name_the_process_in_time(mode: Mode) -> None:
    cell = Cell("worker", "kill", mode)
    ended, named = ["the job ended with 137"], ["worker 1 was killed by SIGKILL"]

    assert judge(cell, ended, named, 0.5).text == "ends, named, 0.5 s"
    assert not judge(cell, ended, named, 10.5).is_right
    assert not judge(cell, ended, ["worker 0 was killed by SIGKILL"], 0.5).is_right
    assert not judge(cell, ["worker 0: row 3 is 2, not 1"], named, 0.5).is_right
    assert not judge(cell, [], named, None).is_right
    assert judge(cell, [], [], 0.5).text == "recovers, 0.5 s"


def test_a_silent_process_may_first_have_its_grace() -> None:
    cell = Cell("worker", "stop 30 s", "sync")

    assert judge(cell, ["the job ended with 1"], ["worker 1 is lost"], 22.0).is_right
    assert not judge(cell, ["the job ended with 1"], ["worker 1 is lost"], 31.0).is_right
