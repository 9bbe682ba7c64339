"""What a disk does with bare requests: by fio if it is installed, else by a loop of reads."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import DEPTH, Arena, Transfers

__all__ = ["PAGE_BYTES", "Reads", "bare_s", "fio", "has_fio", "random_reads"]

PAGE_BYTES = 4096
FIO_S = 1.0


def has_fio() -> bool:
    """Return whether fio is installed."""
    return shutil.which("fio") is not None


class Reads(NamedTuple):
    """Reads of 4 KiB in any order, as many at once as a tier on disk asks for."""

    rate: float
    """A second."""
    cpu_s: float
    """Seconds of a processor for one, the kernel's included."""


def random_reads(
    path: Path, *, num: int, rng: np.random.Generator, transfers: Transfers
) -> Reads:
    """Return how many reads of 4 KiB in any order a second the disk of a file answers.

    Args:
        path: The file.
        num: Reads of the loop, where there is no fio.
        rng: Says where.
        transfers: Does them.
    """
    if has_fio():
        found = fio(path, "randread", "4k", DEPTH)
        return Reads(found["iops"], found["cpu_share"] / found["iops"])
    pages = rng.integers(0, path.stat().st_size // PAGE_BYTES, num)
    cpu = process_time()
    seconds = bare_s(path, pages * PAGE_BYTES, PAGE_BYTES, transfers)
    return Reads(num / seconds, (process_time() - cpu) / num)


def bare_s(path: Path, offsets: NDArray[np.int64], size: int, transfers: Transfers) -> float:
    """Return the seconds of these reads of a file alone: ``size`` bytes each, int64 [n]."""
    arena = Arena()
    arena.reserve(64 * size)
    at = arena.address + np.arange(offsets.size) % 64 * size
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        begun = perf_counter()
        transfers.run(file, offsets, np.full(offsets.size, size), at)
        return perf_counter() - begun
    finally:
        os.close(file)


def fio(path: Path, rw: str, block: str, depth: int, *more: str) -> Mapping[str, float]:
    """Return what fio says of its reads or writes.

    ``cpu_share`` is the part of one processor that it used.
    """
    command = ["fio", "--name=x", f"--filename={path}", f"--rw={rw}", f"--bs={block}"]
    command += ["--direct=1", "--ioengine=io_uring", f"--iodepth={depth}", "--norandommap"]
    command += ["--randrepeat=0", "--invalidate=1", "--output-format=json", "--fallocate=none"]
    if rw != "write":
        command += ["--readonly", f"--runtime={FIO_S}", "--time_based"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    found: dict[str, float] = job["write" if rw == "write" else "read"]
    return {**found, "cpu_share": (job["usr_cpu"] + job["sys_cpu"]) / 100}
