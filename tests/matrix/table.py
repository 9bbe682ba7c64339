"""The matrix as a table of docs/failure-model.md, between two markers."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.matrix.cells import CELLS, FAULTS, ROLES, Cell

from paramfleet_worker.app.verify.plan import MODES

__all__ = ["BEGIN", "END", "PAGE", "TEXT", "read_table", "render", "with_table"]

PAGE = Path(__file__).parents[2] / "docs" / "failure-model.md"

BEGIN = "<!-- matrix: written by `python -m tests.matrix --write` -->"
END = "<!-- matrix ends -->"

TEXT = re.compile(
    r"(?:recovers|goes on without it|ends, named), \d+\.\d s|WRONG.*|not run|none: [\w ]+"
)
"""What a cell may say."""

_WORDS = {"localsgd": "LocalSGD", "geo": "GEO"}


def render(said: Mapping[Cell, str]) -> str:
    """Return the table; a cell that wasn't run says so."""
    heads = ["process", "fault", *(_WORDS.get(mode, mode) for mode in MODES)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for role in ROLES:
        for fault in FAULTS:
            cells = [Cell(role, fault, mode) for mode in MODES]
            texts = [
                f"none: {cell.why_not}" if cell.why_not else said.get(cell, "not run")
                for cell in cells
            ]
            lines.append(f"| {role} | {fault} | {' | '.join(texts)} |")
    return "\n".join(lines)


def read_table(page: str) -> dict[Cell, str]:
    """Return what a page's table says of each cell; nothing for those that weren't run."""
    _, _, rest = page.partition(BEGIN)
    table, _, _ = rest.partition(END)
    said = {}
    for line in table.splitlines():
        words = [word.strip() for word in line.strip().strip("|").split("|")]
        if len(words) == 2 + len(MODES) and words[0] in ROLES:
            for mode, text in zip(MODES, words[2:], strict=True):
                said[Cell(words[0], words[1], mode)] = text
    return {cell: text for cell, text in said.items() if cell in CELLS and text != "not run"}


def with_table(page: str, said: Mapping[Cell, str]) -> str:
    """Return a page with another table.

    Raises:
        ValueError: if it has no markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"the page lacks {BEGIN} or {END}"
        raise ValueError(msg)
    return f"{before}{BEGIN}\n\n{render(said)}\n\n{END}{after}"
