"""Seconds from the launch of a job to its workers' first step: ``python benchmarks/start.py``.

Beside it the same for one process of plain torch, and for a job whose processes share nothing
of what they import. See README.md beside this file.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import Suite, run_script, suite_of
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.system.processes.own_modules import module_command
from peer.children import ChildFailedError
from rounds import Ratio, Rounds, Turn, own_cpu_s

__all__ = ["first_step_of", "measure"]

BUDGET_S = 300.0
QUICK_S = 20.0
"""A smaller budget takes one round and compiles nothing: it shows that everything works."""

WORKERS, SERVERS = 2, 2

METHOD = f"""\
`launch` is the time from the start of `paramfleet launch` with {WORKERS} workers and {SERVERS}
pservers, whose kernels are compiled, until each worker's first step in sync has ended; `bare`
the same for one process of plain torch with a model of the same layers; `unshared` is `launch`
with --no-share-imports. All in turns, nothing pinned. cpu_s is the processor time of all
processes to their end. import_cpu_s is the processor time that `import paramfleet` takes behind
that of torch, pserver_import_cpu_s that of all that a pserver imports. first_compile_cpu_s is
the processor time of `python -m paramfleet_shared.tables.warm` with an empty cache, once."""

WITHIN_S = 180.0
"""For one job, on however busy a machine."""

COMPILED_WITHIN_S = 900.0

_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""The variable that lets each process compile all modules of a checkout anew. What pip has
installed is compiled, so no process that is measured has it."""

_WORK = Path(__file__).parent / "work"

_CLIENT = """
import os, torch
def cpu(): return sum(os.times()[:2])
before = cpu()
import paramfleet
paramfleet.init
print(cpu() - before)
"""
_PSERVER = "import os, paramfleet_pserver.__main__; print(sum(os.times()[:2]))"


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure every case in rounds for about ``budget_s`` seconds."""
    quick = budget_s < QUICK_S
    launch = [
        *module_command("paramfleet_worker", "launch"),
        *(f"--worker-num={WORKERS}", f"--server-num={SERVERS}", "--log-dir=log"),
    ]
    script = str(_WORK / "first_step.py")
    cases: dict[str, Callable[[], Turn]] = {
        "bare": partial(_start, [sys.executable, str(_WORK / "bare_start.py")], 1),
        "launch": partial(_start, [*launch, script], WORKERS),
        "unshared": partial(_start, [*launch, "--no-share-imports", script], WORKERS),
    }
    _start([*launch, script], WORKERS)  # byte code and files are there
    rounds = Rounds(list(cases), budget_s=budget_s, max_rounds=1 if quick else 1000)
    client: list[float] = []
    pserver: list[float] = []
    for case in rounds.turns:
        rounds.figures[case].append(cases[case]())
        if case == "bare":
            client.append(_printed(_CLIENT))
            pserver.append(_printed(_PSERVER))
    seconds = {case: [1 / each.rate for each in rounds.figures[case]] for case in cases}
    suite = suite_of(
        "start",
        rows=[_row(case, rounds, seconds[case]) for case in cases],
        headlines={
            "launch_to_first_step_s": rounds.turns.headline(seconds["launch"]),
            "start_vs_bare": rounds.headline("bare", "launch"),
            "start_cpu_vs_unshared": rounds.cpu_headline("launch", "unshared"),
            "import_cpu_s": rounds.turns.headline(client),
            "pserver_import_cpu_s": rounds.turns.headline(pserver),
        },
        method=METHOD,
        turns={"start": rounds.turns},
    )
    suite["summary"]["first_compile_cpu_s"] = None if quick else _compile_cpu_s()
    return suite


def first_step_of(notes: Mapping[str, str], num_workers: int) -> float | None:
    """Return when the last worker had ended its first step; None if one hasn't.

    Args:
        notes: By the name of its file, when a worker had.
        num_workers: Of the job.
    """
    found = [notes.get(f"first-{rank}") for rank in range(num_workers)]
    if None in found:
        return None
    return max(float(each) for each in found if each is not None)


def _start(command: Sequence[str], num_workers: int) -> Turn:
    """Run a job to its end, and return how long its first step took to come.

    Raises:
        ChildFailedError: if it fails, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="paramfleet-start-") as name:
        cpu, began = own_cpu_s(), time.perf_counter()
        ended = subprocess.run(
            tied([*command, f"--folder={name}"]),
            cwd=name,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
        notes = {path.name: path.read_text() for path in Path(name).glob("first-*")}
        first = first_step_of(notes, num_workers)
        if ended.returncode or first is None:
            raise ChildFailedError(ended.stderr[-2000:])
        return Turn(1 / (first - began), own_cpu_s() - cpu)


def _printed(code: str) -> float:
    """Return the number that a program of this interpreter prints."""
    command = tied([sys.executable, "-c", code])
    said = subprocess.check_output(command, env=_environment(), text=True, timeout=WITHIN_S)
    return float(said)


def _environment() -> dict[str, str]:
    """Return the variables of what is measured."""
    return {k: v for k, v in read_environment().items() if k != _NO_BYTECODE}


def _compile_cpu_s() -> float:
    """Return the processor time of compiling every kernel."""
    with tempfile.TemporaryDirectory(prefix="paramfleet-start-") as name:
        before = own_cpu_s()
        subprocess.run(
            tied(module_command("paramfleet_shared.tables.warm")),
            env={**_environment(), "NUMBA_CACHE_DIR": name},
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=COMPILED_WITHIN_S,
        )
        return own_cpu_s() - before


def _row(case: str, rounds: Rounds, seconds: Sequence[float]) -> dict[str, Any]:
    kept = rounds.turns.kept(seconds)
    return {
        "case": case,
        "first_step_s": Ratio.of(kept),
        "vs_bare": Ratio.of([1 / each for each in rounds.ratio(case, "bare")]),
        "cpu_s": statistics.median(
            [each.cpu_s for each in rounds.turns.kept(rounds.figures[case])]
        ),
        "rounds": rounds.turns.num_counted,
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
