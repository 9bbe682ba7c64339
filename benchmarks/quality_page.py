"""The tables of docs/accuracy.md, of what ``quality.py --output`` wrote."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import markdown_table
from quality import BARE, CONTROL, MODES, Case, Run, floors_of, interval

__all__ = ["case_lines", "main", "total_lines"]

NAMES = {"async": "async", "geo": "GEO", CONTROL: "control"}


def case_lines(runs: Sequence[Run]) -> list[str]:
    """Return a line for each case: mean losses, and in brackets the worst seed's."""
    floors = floors_of(runs)
    rows: list[dict[str, Any]] = []
    for case in sorted(floors):
        own = [each for each in runs if each.case == case]
        row: dict[str, Any] = {**case._asdict(), "seeds": len(own)}
        row["one process"] = f"{np.mean([each.alone for each in own]):.4f}"
        for mode in (*MODES, CONTROL, *BARE):
            losses = [each.alone - each.modes[mode] for each in own]
            row[NAMES.get(mode, mode)] = f"{np.mean(losses):.4f} ({max(losses):.4f})"
        row["floor"] = floors[case]
        for mode in MODES:
            over = [each.modes[floors[case]] - each.modes[mode] for each in own]
            low, high = interval(over)
            between = f" [{low:.4f}, {high:.4f}]" if len(over) > 1 else ""
            row[f"{NAMES[mode]} over floor"] = f"{np.mean(over):.4f}{between}"
        rows.append(row)
    return markdown_table(rows)


def total_lines(runs: Sequence[Run]) -> list[str]:
    """Return a line for each mode and for the floor, over all cases and seeds."""
    floors = floors_of(runs)
    with_floor = [
        each._replace(modes={**each.modes, "floor": each.modes[floors[each.case]]})
        for each in runs
    ]
    rows: list[dict[str, Any]] = []
    for mode in (*MODES, CONTROL, *BARE, "floor"):
        losses = [each.alone - each.modes[mode] for each in with_floor]
        over = [each.modes["floor"] - each.modes[mode] for each in with_floor]
        rows.append(
            {
                f"over all {len(runs)} runs": NAMES.get(mode, mode),
                "mean": f"{np.mean(losses):.4f}",
                "median": f"{np.median(losses):.4f}",
                "worst": f"{max(losses):.4f}",
                "mean over floor": f"{np.mean(over):.4f}",
                "worst over floor": f"{max(over):.4f}",
            }
        )
    return markdown_table(rows)


def main() -> int:
    """Be the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path, help="what quality.py wrote")
    options = parser.parse_args()
    found = json.loads(options.result.read_text(encoding="utf-8"))["details"]["runs"]
    runs = [Run(Case(*case), *rest) for case, *rest in found]
    print("\n".join([*case_lines(runs), "", *total_lines(runs)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
