"""Every suite, in ten minutes: ``make bench``, or ``python benchmarks/run.py``.

Each suite is a process of its own, one after the other. What they find goes to a folder
as JSON, as a page of tables, as plots, and as ``summary.json``, which is the last line
printed too. A suite that fails says why in its JSON, and the others go on.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import load_average, machine_facts, markdown_table, write_json
from paramfleet_shared.system.processes.keeping import tied
from peer.jobs import compile_kernels
from report import HEADLINES, HeadlineRecord, page, plot, summary_of

__all__ = ["SUITES", "Plan", "command_of", "main"]

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
QUICK_RESULTS = FOLDER.parent / "build" / "benchmarks"
"""Where ``--quick`` writes: its figures are no measurement."""

SUITES: dict[str, float] = {
    "transport": 30.0,
    "table": 75.0,
    "path": 65.0,
    "training": 65.0,
    "delay": 50.0,
    "compression": 50.0,
    "growth": 75.0,
    "datasets": 15.0,
    "runner": 25.0,
    "word2vec": 60.0,
    "durability": 180.0,
    "recovery": 420.0,
}
"""Seconds that each suite needs for its start and for five rounds that count, on two cores
that nothing else uses; in the order in which they run."""

ALONE = (
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

NEED_DATA = {
    "localsgd": "make bench-localsgd DATA_DIR=FOLDER",
    "paddle": "make bench-paddle",
    "quality": "python benchmarks/quality.py --data_dir FOLDER --output {output}",
}
"""How to run those that need more than their name and a place for the result."""

TOTAL_S = 570.0
"""All suites together, unless they are named. What doesn't fit is left out."""

MAX_TIMES = 3.0
"""A suite that takes longer than so many times its seconds, and ``LATE_S``, is stopped."""

LATE_S = 60.0
"""How long after the end of its time a suite is stopped."""

LAST_WORDS = 2000
"""Characters of a failed suite's standard error that are kept."""


class Plan:
    """Which suites run: each in all of the time that it needs, or not at all.

    Args:
        total_s: Seconds for all.
    """

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self._planned_s = 0.0

    def fits(self, name: str, *, elapsed_s: float) -> bool:
        """Return whether a suite ends in time; one that does is expected to run.

        Args:
            name: The suite.
            elapsed_s: Seconds since the first one began: a machine on which the suites so far
                took longer than they need is expected to be as slow for the next.
        """
        slowness = max(1.0, elapsed_s / self._planned_s) if self._planned_s else 1.0
        if elapsed_s + slowness * SUITES[name] > self._total_s:
            return False
        self._planned_s += SUITES[name]
        return True


def command_of(name: str) -> str:
    """Return the command that runs a suite and keeps its result."""
    if name in SUITES:
        return f"make bench ONLY={name}"
    script = f"python benchmarks/{name}.py --output {{output}}"
    return NEED_DATA.get(name, script).format(output=f"benchmarks/results/{name}.json")


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="see that all suites work")
    parser.add_argument("--only", help=f"suites, separated by commas: {','.join(SUITES)}")
    parser.add_argument("--results", type=Path, help="folder to write to")
    options = parser.parse_args()
    options.suites = options.only.split(",") if options.only else list(SUITES)
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    options.suites.sort(key=list(SUITES).index)
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


def write_results(folder: Path, measured: Collection[str]) -> Mapping[str, HeadlineRecord]:
    """Write the page, the plots and the summary of a folder's results; return the summary.

    Args:
        folder: Where they are.
        measured: Suites that ran now.
    """
    results = known_results(folder)
    plots = [name for name, result in results.items() if plot(result, folder / f"{name}.png")]
    left_out = {each: command_of(each) for each in HEADLINES if each not in measured}
    summary = summary_of(results, left_out)
    (folder / "README.md").write_text(page(results, plots), encoding="utf-8")
    write_json(folder / "summary.json", summary)
    return summary


def main() -> int:
    """Run the suites; returns 1 if one failed."""
    options = parse_arguments()
    compile_kernels()
    plan = Plan(math.inf if options.only else TOTAL_S)
    begin, num_failed, measured = time.perf_counter(), 0, []
    print(f"{machine_facts()['processor']}, load average {load_average()}", flush=True)
    for name in options.suites:
        if not plan.fits(name, elapsed_s=time.perf_counter() - begin):
            continue
        measured.append(name)
        arguments = ["--quick"] if options.quick else [f"--budget={SUITES[name]:.1f}"]
        limit_s = MAX_TIMES * SUITES[name] + LATE_S
        result = run_suite(name, arguments, limit_s=limit_s)
        write_json(options.results / f"{name}.json", result)
        num_failed += "failed" in result
        print(f"\n## {name}\n", *markdown_table(result["rows"]), sep="\n")
        print(result.get("failed", f"{result.get('wall_s', 0):.0f} s"), flush=True)
    summary = write_results(options.results, measured)
    print(f"\nwritten to {options.results}; {time.perf_counter() - begin:.0f} s")
    for name in [each for each in options.suites if each not in measured]:
        print(f"left out, because it needs {SUITES[name]:.0f} s: {name}; `{command_of(name)}`")
    print(json.dumps(summary), flush=True)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
