"""Runs the cells of an idiom as processes, and says what came of each."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.idioms.record import BOUND, Cell, Differs, Idiom, Mode, Refused
from tests.processes.training.conftest import JobRunner, Programs, Running, ends, free_port

__all__ = ["Measured", "measure", "verdict"]

PROGRAM = str(Path(__file__).parent / "program.py")

WORKERS: Final[Mapping[str, int]] = {
    "alone": 1,
    "sync": 2,
    "async": 1,
    "geo": 1,
    "gpubox": 2,
    "collective": 2,
}
"""Workers of each mode. With one worker async and GEO compute what one process does,
so that *same* has a meaning there; what several add is the mode's own difference."""

WITHIN_S = 60.0
"""How long a cell may take; one that hasn't ended then hangs."""

_LOOK_S = 0.03
"""Between two looks at what a worker has printed."""

_WARNING = re.compile(r"^\S+ WARNING \S+ (\w+\.\w+)", re.MULTILINE)

_ENDED = ("unavailable.", "job_failed", "integrity.job_failed")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of a cell."""

    kind: str
    """``same``, ``differs``, ``refused``, or the name of a defect: ``raised``, ``hangs``."""
    detail: str = ""
    """The code, the largest difference, or the error."""
    warnings: frozenset[str] = frozenset()
    far_from: Mapping[str, float] | None = None
    """Largest difference from each further reference, by its loop's name."""

    @property
    def text(self) -> str:
        """Text for people."""
        said = f"; warned: {', '.join(sorted(self.warnings))}" if self.warnings else ""
        others = f"; from others {dict(self.far_from)}" if self.far_from else ""
        return f"{self.kind} {self.detail}{others}{said}".strip()


def verdict(cell: Cell, measured: Measured, *, bound: float = BOUND) -> str:
    """Return what is wrong with a cell; empty if it is as its record says."""
    if isinstance(cell, Refused):
        is_right = (measured.kind, measured.detail) == ("refused", cell.code)
    elif isinstance(cell, Differs):
        is_right = measured.kind == "differs"
        if cell.warning:
            is_right = is_right and cell.warning in measured.warnings
        if cell.equals is not None:
            far = (measured.far_from or {}).get(cell.equals.__name__, float("inf"))
            is_right = is_right and far <= bound
    else:
        is_right = measured.kind == "same"
    return "" if is_right else f"the record says {cell.text!r}; measured: {measured.text}"


def measure(idiom: Idiom, jobs: JobRunner, modes: Sequence[Mode]) -> dict[Mode, Measured]:
    """Run the cells of an idiom at once.

    Args:
        idiom: It.
        jobs: Starts processes.
        modes: Those that are run.
    """
    folders = {mode: jobs.new(workers=WORKERS[mode], servers=1) for mode in modes}
    reference = jobs.new(workers=1, servers=0)
    with ThreadPoolExecutor(len(modes) + 1) as pool:
        torch = pool.submit(_run, reference, jobs.programs, "torch", idiom.name)
        running = {
            mode: pool.submit(_run, job, jobs.programs, mode, idiom.name)
            for mode, job in folders.items()
        }
        said = torch.result()["worker0"]
        broken = [line for line in said.lines if "numbers" not in line]
        assert said.lines, said.log
        assert not broken, f"torch alone: {said.log}"
        references = {line["of"]: line["numbers"] for line in said.lines}
        return {
            mode: _judged(found.result(), references, idiom.bound)
            for mode, found in running.items()
        }


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What a worker printed."""

    lines: list[dict[str, Any]]
    warnings: frozenset[str]
    log: str


def _run(job: Running, programs: Programs, mode: str, name: str) -> dict[str, _Said]:
    """Run one cell; return what each of its workers printed."""
    if mode in {"sync", "async", "geo", "gpubox"}:
        job.start_all(PROGRAM, mode, name)
    else:
        size = job.num_workers
        port = str(free_port())
        for rank in range(size):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            log = job.folder / f"worker{rank}"
            env = place if mode == "collective" else {}
            job.pids[log.name] = programs.start([PROGRAM, mode, name], env, log)
    workers = [each for each in job.pids if each.startswith("worker")]
    deadline = time.perf_counter() + WITHIN_S
    for each in workers:
        is_over = partial(ends, job.pids[each], _LOOK_S)
        while not (_has_said(job.log(each), mode) or is_over()):
            if time.perf_counter() > deadline:
                break
    job.close()
    return {each: _read(job.log(each)) for each in workers}


def _has_said(log: str, mode: str) -> bool:
    """Return whether a worker waits to be ended."""
    return mode not in {"torch", "alone"} and '"of": ""}\n' in log


def _read(log: str) -> _Said:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith('{"')]
    lines = [line for line in lines if line.get("of") != "init"]
    return _Said(lines=lines, warnings=frozenset(_WARNING.findall(log)), log=log)


def _judged(
    workers: Mapping[str, _Said], references: Mapping[str, Any], bound: float
) -> Measured:
    warned = frozenset(name for each in workers.values() for name in each.warnings)
    said = [each.lines[-1] if each.lines else {} for each in workers.values()]
    for each, worker in zip(said, workers.values(), strict=True):
        if "raised" in each:
            detail = f"{each['raised']}: {each['text']}\n{each['where']}"
            return Measured(kind="raised", detail=detail, warnings=warned)
        if not each:
            return Measured(kind="hangs", detail=worker.log[-2000:], warnings=warned)
    refused = [each for each in said if "refused" in each]
    if refused:
        first = min(refused, key=lambda each: each["refused"].startswith(_ENDED))
        return Measured(kind="refused", detail=first["refused"], warnings=warned)
    numbers = [each["numbers"] for each in said]
    _merge_losses(numbers)
    far = {name: _far(numbers, values) for name, values in references.items()}
    largest, where = far.pop("", (float("inf"), "no reference"))
    kind = "same" if largest <= bound else "differs"
    return Measured(
        kind=kind,
        detail=f"{largest:.1e} in {where}",
        warnings=warned,
        far_from={name: each for name, (each, _) in far.items()},
    )


def _merge_losses(numbers: Sequence[dict[str, Any]]) -> None:
    """Give every worker the mean of all losses, by their weights."""
    if any("losses" not in each for each in numbers):
        return
    steps = max(len(each["losses"]) for each in numbers)
    merged = []
    for step in range(steps):
        found = [
            (each["losses"][step], each["loss_weights"][step])
            for each in numbers
            if step < len(each["losses"])
        ]
        total = sum(weight for _, weight in found)
        merged.append(sum(loss * weight for loss, weight in found) / total)
    for each in numbers:
        each["losses"] = merged
        del each["loss_weights"]


def _far(
    numbers: Sequence[Mapping[str, Any]], expected: Mapping[str, Any]
) -> tuple[float, str]:
    """Return the largest difference of any worker's numbers, and where it is."""
    largest, where = 0.0, "nothing"
    for each in numbers:
        for name in (set(each) | set(expected)) - {"loss_weights"}:
            ours, its = each.get(name), expected.get(name)
            if ours is None or its is None or len(ours) != len(its):
                return float("inf"), f"{name}: not the same numbers"
            far = max((abs(a - b) for a, b in zip(ours, its, strict=True)), default=0.0)
            if not far <= largest:  # NaN is far, too
                largest, where = far, name
    return largest, where
