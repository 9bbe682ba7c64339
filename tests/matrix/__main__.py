"""``python -m tests.matrix``: each fault of each process in each mode, and the table of it."""

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from tests.matrix.cells import CELLS, Cell, Outcome
from tests.matrix.running import run_cell
from tests.matrix.table import PAGE, read_table, with_table

from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.process.prepared.running import PreparedProcess


def main() -> int:
    """Run cells; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--cells", default="", help="A pattern of names, as worker/kill/sync.")
    parser.add_argument("--jobs", type=int, default=2, help="Cells at once.  [2]")
    parser.add_argument("--missing", action="store_true", help="Only what the page lacks.")
    parser.add_argument("--write", action="store_true", help="Write the page's table.")
    options = parser.parse_args()
    said = read_table(PAGE.read_text())
    cells = [
        cell
        for cell in CELLS
        if not cell.why_not
        and re.search(options.cells, cell.name)
        and not (options.missing and said.get(cell, "WRONG")[:5] != "WRONG")
    ]
    prepared = PreparedProcess(folder=Path(__file__).parents[2])
    with contextlib.closing(prepared), prepared.prepared.starting():
        wrong = asyncio.run(run_all(cells, options.jobs, write=options.write))
    print(json.dumps({"cells": len(cells), "wrong": wrong}))
    return 1 if wrong else 0


async def run_all(cells: list[Cell], jobs: int, *, write: bool) -> int:
    """Run cells, so many at once; return how many are wrong."""
    slots, clock, wrong = asyncio.Semaphore(jobs), SystemClock(), 0

    async def run(cell: Cell) -> None:
        nonlocal wrong
        async with slots:
            folder = Path(tempfile.mkdtemp(prefix="paramfleet-matrix-"))
            outcome, ran = await run_cell(cell, folder, clock)
        show(cell, outcome, folder)
        wrong += not outcome.is_right
        if outcome.is_right:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            (folder / "words.txt").write_text("\n".join([*ran.problems, *ran.last_words]))
        if write:
            page = PAGE.read_text()
            said = {**read_table(page), cell: outcome.text}
            PAGE.write_text(with_table(page, said))

    async with asyncio.TaskGroup() as group:
        for cell in cells:
            group.create_task(run(cell))
    return wrong


def show(cell: Cell, outcome: Outcome, folder: Path) -> None:
    """Print a cell's line."""
    where = "" if outcome.is_right else f" ({folder})"
    print(f"{cell.name}: {outcome.text}{where}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
