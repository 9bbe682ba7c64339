"""What every suite shares: its result, the machine it ran on, its command line, the tables.

A suite is a script with ``measure(*, budget_s) -> Suite``. Its cases run in rounds
(``rounds.py``), of which those count in which the machine was free (``conditions.py``).
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from conditions import Headline, findings_of
from rounds import Turns

__all__ = [
    "Measure",
    "Suite",
    "load_average",
    "machine_facts",
    "markdown_table",
    "run_script",
    "suite_of",
    "with_machine",
    "write_json",
]

QUICK_BUDGET_S = 8.0
"""What ``--quick`` gives a suite, in seconds: enough to see that it works."""

PACKAGES = (
    "paramfleet",
    "numpy",
    "numba",
    "uvloop",
    "torch",
    "grpcio",
    "aiohttp",
    "redis",
    "fbgemm-gpu-cpu",
    "gensim",
)
"""Whose versions are written beside the figures, where they are installed."""


class Suite(TypedDict):
    """What a suite found."""

    benchmark: str
    """The suite's name."""
    rows: list[dict[str, Any]]
    """Flat records for people and plots; a table each for every different set of keys."""
    summary: dict[str, float | None]
    """Headline figures; None where one could not be measured, and ``method`` says why, and
    where one does not hold, and ``refused`` of ``details`` says why."""
    method: str
    """What was measured and how, in sentences."""
    details: NotRequired[dict[str, Any]]
    """What else belongs to the figures: sizes, spreads, why something is missing."""


class Measure(Protocol):
    """A suite's function."""

    def __call__(self, *, budget_s: float) -> Suite:
        """Measure for about ``budget_s`` seconds, at least one round."""
        ...


def suite_of(
    benchmark: str,
    *,
    rows: list[dict[str, Any]],
    headlines: Mapping[str, Headline | None],
    method: str,
    turns: Mapping[str, Turns],
    details: Mapping[str, Any] | None = None,
) -> Suite:
    """Return a suite's result, from which headlines that do not hold are left out by name.

    Args:
        benchmark: The suite's name.
        rows: Its records.
        headlines: By name, round by round; None for what was not measured.
        method: What was measured and how.
        turns: Its rounds, by the part of the suite.
        details: What else belongs to the figures.
    """
    found = findings_of(headlines)
    return {
        "benchmark": benchmark,
        "rows": rows,
        "summary": found.summary,
        "method": method,
        "details": {
            **(details or {}),
            "spread": found.spread,
            "counted": found.counted,
            "refused": found.refused,
            "rounds": {part: each.report() for part, each in turns.items()},
        },
    }


def machine_facts() -> dict[str, Any]:
    """Return what the figures belong to: processor, cores, memory, versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
        ),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": _versions(),
    }


def load_average() -> list[float]:
    """Return the load averages over 1, 5 and 15 minutes."""
    return [round(value, 1) for value in os.getloadavg()]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return records as Markdown: one table for each run of records with the same keys."""
    lines: list[str] = []
    keys: list[str] = []
    for row in rows:
        if list(row) != keys:
            keys = list(row)
            head = ["", _cells(keys)] if lines else [_cells(keys)]
            lines += [*head, "|" + "---|" * len(keys)]
        lines.append(_cells([_text(row[key]) for key in keys]))
    return lines


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON for people and ``git diff``; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def run_script(measure: Measure, *, description: str, budget_s: float) -> int:
    """Be a suite's command line: measure, print the tables, and the result as one JSON line.

    Options: ``--quick`` (a few seconds instead of ``budget_s``), ``--budget SECONDS``,
    ``--output FILE``.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="see that it works, in seconds")
    parser.add_argument("--budget", type=float, help=f"seconds to measure ({budget_s:g})")
    parser.add_argument("--output", type=Path, help="write the result here too")
    options = parser.parse_args()
    default_s = QUICK_BUDGET_S if options.quick else budget_s
    given_s = default_s if options.budget is None else options.budget
    result = with_machine(lambda: measure(budget_s=given_s))
    for line in markdown_table(result["rows"]):
        print(line)
    if options.output is not None:
        write_json(options.output, result)
    print(json.dumps(result))
    sys.stdout.flush()
    return 0


def with_machine(call: Callable[[], Suite]) -> dict[str, Any]:
    """Return a suite's result with the machine it ran on, its load, and how long it took."""
    before, start = load_average(), time.perf_counter()
    result = call()
    return {
        **{key: _rounded(value) for key, value in result.items()},
        "wall_s": round(time.perf_counter() - start, 1),
        "load_average_before": before,
        "load_average_after": load_average(),
        "machine": machine_facts(),
    }


def _processor() -> str:
    """Return the processor's model, or what the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _rounded(value: Any) -> Any:
    """Return JSON's value with floats of 5 digits: no figure here is better than that."""
    match value:
        case float():
            return float(f"{value:.5g}")
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
        case _:
            return value


def _text(value: object) -> str:
    """Return a cell: few digits, and a spread as ``median (least..most)``."""
    match value:
        case None:
            return ""
        case float():
            return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        case [float() | int() as median, float() | int() as least, float() | int() as most]:
            return f"{_text(median)} ({_text(least)}..{_text(most)})"
        case _:
            return str(value)


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
