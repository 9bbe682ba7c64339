"""What every suite shares: interleaved rounds, ratios of one round, the machine, the report.

A suite is a script with ``measure(*, budget_s) -> Suite``. Its cases run in rounds: each
round runs every case once, and each round begins with another case, so that whatever else
the machine does disturbs all of them alike. What is reported of two cases is the ratio of
their figures *within a round*: its median over the rounds, its least and its most.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict

__all__ = [
    "Measure",
    "Ratio",
    "Rounds",
    "Suite",
    "in_turns",
    "load_average",
    "machine_facts",
    "markdown_table",
    "run_script",
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
    """Headline figures; None where one could not be measured, and ``method`` says why."""
    method: str
    """What was measured and how, in sentences."""
    details: NotRequired[dict[str, Any]]
    """What else belongs to the figures: sizes, spreads, why something is missing."""


class Measure(Protocol):
    """A suite's function."""

    def __call__(self, *, budget_s: float) -> Suite:
        """Measure for about ``budget_s`` seconds, at least one round."""
        ...


class Ratio(NamedTuple):
    """A figure over the rounds; mostly one case's divided by another's of the same round."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Ratio":
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        """Return it as ``median (least..most)``."""
        return f"{self.median:.2f} ({self.least:.2f}..{self.most:.2f})"


class Rounds:
    """Figures of cases, one of each case in each round.

    Args:
        names: The cases.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.figures: dict[str, list[float]] = {name: [] for name in names}

    def run(
        self,
        cases: Mapping[str, Callable[[], float]],
        *,
        budget_s: float,
        max_rounds: int = 1_000,
    ) -> None:
        """Call the cases in turns, and keep what they return, until the time is over."""
        for name in in_turns(list(cases), budget_s=budget_s, max_rounds=max_rounds):
            self.figures[name].append(cases[name]())

    def figure(self, name: str) -> Ratio:
        """Return a case's own figure over the rounds."""
        return Ratio.of(self.figures[name])

    def ratio(self, name: str, other: str) -> Ratio:
        """Return ``name`` / ``other``, each quotient of figures of one round."""
        pairs = zip(self.figures[name], self.figures[other], strict=True)
        return Ratio.of([mine / theirs for mine, theirs in pairs])


def in_turns(
    names: Sequence[str],
    *,
    budget_s: float,
    max_rounds: int = 1_000,
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[str]:
    """Yield every name once a round, each round from another one on.

    No round begins when the time is over or when it would not end in time if it took as
    long as the longest so far; the first round always runs. Rounds are whole, unless the
    caller stops asking.

    Args:
        names: The cases, at least one.
        budget_s: Seconds for all rounds.
        max_rounds: Rounds are enough.
        now: Seconds that go by, for tests.
    """
    start = now()
    longest_s = 0.0
    for number in range(max_rounds):
        begun = now()
        if number and begun - start + longest_s > budget_s:
            return
        first = number % len(names)
        yield from (*names[first:], *names[:first])
        longest_s = max(longest_s, now() - begun)


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
