"""Every suite, in ten minutes: ``make bench``, or ``python benchmarks/run.py``.

Each suite is a process of its own, one after the other. What they find goes to a folder
as JSON, as a page of tables, as plots, and as ``summary.json``, which is the last line
printed too. A suite that fails says why in its JSON, and the others go on.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import load_average, machine_facts, markdown_table, write_json
from paramfleet_shared.system.processes.keeping import tied
from peer.jobs import compile_kernels
from report import page, plot, summary_of

__all__ = ["SUITES", "Plan", "main"]

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
QUICK_RESULTS = FOLDER.parent / "build" / "benchmarks"
"""Where ``--quick`` writes: its figures are no measurement."""

SUITES: dict[str, float] = {
    "transport": 42.0,
    "table": 75.0,
    "path": 75.0,
    "training": 85.0,
    "delay": 60.0,
    "compression": 50.0,
    "growth": 50.0,
    "datasets": 15.0,
    "runner": 30.0,
    "word2vec": 60.0,
}
"""Seconds of each suite, in the order in which they run. Together less than ``TOTAL_S``,
because starting and ending processes takes time too."""

LONG: dict[str, float] = {"durability": 180.0, "recovery": 420.0}
"""Seconds of suites that run if they are named, after the others and beyond ``TOTAL_S``."""

ALONE = (
    *LONG,
    "checkpoint",
    "gpubox",
    "localsgd",
    "localsgd_servers",
    "log",
    "moving",
    "paddle",
    "quality",
    "serving",
    "soak",
    "start",
    "word2vec_quality",
)
"""What is run by itself; its results are shown with the others' where there are any."""

TOTAL_S = 570.0
"""All suites together. The later ones get less when the earlier ones took longer."""

LATE_S = 60.0
"""A suite is stopped so long after the end of its time."""

LAST_WORDS = 2000
"""Characters of a failed suite's standard error that are kept."""


class Plan:
    """How much of the time that is left each suite gets.

    Args:
        names: The suites to run.
        total_s: Seconds for all.
    """

    def __init__(self, names: Sequence[str], total_s: float) -> None:
        self._left = {name: SUITES[name] for name in names}
        self._total_s = total_s

    def take(self, name: str, *, elapsed_s: float) -> float:
        """Return a suite's seconds, its share of what is left and at most its own."""
        left_s = max(0.0, self._total_s - elapsed_s)
        share_s = left_s * self._left[name] / sum(self._left.values())
        return min(self._left.pop(name), share_s)


def run_suite(name: str, arguments: Sequence[str], *, limit_s: float) -> dict[str, Any]:
    """Run a suite's script; returns what it wrote, or why it wrote nothing.

    Args:
        name: The suite.
        arguments: Of its command line.
        limit_s: Seconds until it is stopped.
    """
    script = FOLDER / f"{name}.py"
    if not script.is_file():
        return failure(name, f"there is no {script.name}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        output, words = Path(folder) / "result.json", Path(folder) / "words"
        with words.open("wb") as stderr:
            process = subprocess.Popen(
                tied([sys.executable, str(script), f"--output={output}", *arguments]),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
            status = wait_or_stop(process, limit_s)
        said = words.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]
        if status is None:
            return failure(name, f"stopped after {limit_s:.0f} s; its last words:\n{said}")
        if status or not output.is_file():
            return failure(name, f"it ended with {status}; its last words:\n{said}")
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return result


def wait_or_stop(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Return a process's exit status; None if it, and all it started, had to be stopped."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, how)
                try:
                    process.wait(10.0)
                except subprocess.TimeoutExpired:
                    continue


def failure(name: str, why: str) -> dict[str, Any]:
    """Return the result of a suite that has none."""
    return {"benchmark": name, "rows": [], "summary": {}, "method": "", "failed": why}


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    known = [*SUITES, *LONG]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="see that all suites work")
    parser.add_argument("--only", help=f"suites, separated by commas: {','.join(known)}")
    parser.add_argument("--results", type=Path, help="folder to write to")
    options = parser.parse_args()
    options.suites = options.only.split(",") if options.only else list(SUITES)
    unknown = [name for name in options.suites if name not in known]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(known)}")
    options.suites.sort(key=known.index)  # the long ones last
    if options.results is None:
        options.results = QUICK_RESULTS if options.quick else RESULTS
    return options


def known_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results in a folder, in the order of ``SUITES``."""
    paths = {name: folder / f"{name}.json" for name in (*SUITES, *ALONE)}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.is_file()
    }


def write_results(folder: Path) -> Mapping[str, float | None]:
    """Write the page, the plots and the summary of a folder's results; return the summary."""
    results = known_results(folder)
    plots = [name for name, result in results.items() if plot(result, folder / f"{name}.png")]
    summary = summary_of(results)
    (folder / "README.md").write_text(page(results, plots), encoding="utf-8")
    write_json(folder / "summary.json", summary)
    return summary


def main() -> int:
    """Run the suites; returns 1 if one failed."""
    options = parse_arguments()
    compile_kernels()
    plan = Plan([name for name in options.suites if name in SUITES], TOTAL_S)
    begin, num_failed = time.perf_counter(), 0
    print(f"{machine_facts()['processor']}, load average {load_average()}", flush=True)
    for name in options.suites:
        elapsed_s = time.perf_counter() - begin
        budget_s = LONG.get(name) or plan.take(name, elapsed_s=elapsed_s)
        arguments = ["--quick"] if options.quick else [f"--budget={budget_s:.1f}"]
        result = run_suite(name, arguments, limit_s=budget_s + LATE_S)
        write_json(options.results / f"{name}.json", result)
        num_failed += "failed" in result
        print(f"\n## {name}\n", *markdown_table(result["rows"]), sep="\n")
        print(result.get("failed", f"{result.get('wall_s', 0):.0f} s"), flush=True)
    summary = write_results(options.results)
    print(f"\nwritten to {options.results}; {time.perf_counter() - begin:.0f} s")
    print(json.dumps(summary), flush=True)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
