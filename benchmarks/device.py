"""What a disk does with bare requests: by fio if it is installed, else by a loop of reads."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import DEPTH, Arena, Transfers

__all__ = ["PAGE_BYTES", "bare_s", "fio", "has_fio", "random_reads", "reads_beside"]

PAGE_BYTES = 4096
FIO_S = 1.0


def has_fio() -> bool:
    """Return whether fio is installed."""
    return shutil.which("fio") is not None


def random_reads(
    path: Path, *, num: int, rng: np.random.Generator, transfers: Transfers
) -> float:
    """Return how many reads of 4 KiB in any order a second the disk of a file answers.

    Args:
        path: The file.
        num: Reads of the loop, where there is no fio.
        rng: Says where.
        transfers: Does them.
    """
    if has_fio():
        return fio(path, "randread", "4k", DEPTH)["iops"]
    pages = rng.integers(0, path.stat().st_size // PAGE_BYTES, num)
    return num / bare_s(path, pages * PAGE_BYTES, PAGE_BYTES, transfers)


def reads_beside(path: Path, bytes_per_s: float) -> float:
    """Return the random reads of 4 KiB a second that fio does beside a stream each way.

    Args:
        path: The file; it is written to.
        bytes_per_s: What is read in order, and as much is written so.
    """
    command = ["fio", f"--filename={path}", "--direct=1", "--ioengine=io_uring"]
    command += ["--norandommap", "--randrepeat=0", "--invalidate=1", "--output-format=json"]
    command += ["--fallocate=none", f"--runtime={FIO_S}", "--time_based"]
    command += ["--name=random", "--rw=randread", "--bs=4k", f"--iodepth={DEPTH}"]
    rate = f"--rate={int(bytes_per_s)}"
    command += ["--name=read", "--rw=read", "--bs=256k", "--iodepth=8", rate]
    command += ["--name=written", "--rw=write", "--bs=1m", "--iodepth=4", rate]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    jobs = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    return float(jobs[0]["read"]["iops"])


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
    """Return what fio says of its reads or writes."""
    command = ["fio", "--name=x", f"--filename={path}", f"--rw={rw}", f"--bs={block}"]
    command += ["--direct=1", "--ioengine=io_uring", f"--iodepth={depth}", "--norandommap"]
    command += ["--randrepeat=0", "--invalidate=1", "--output-format=json", "--fallocate=none"]
    if rw != "write":
        command += ["--readonly", f"--runtime={FIO_S}", "--time_based"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    found: Mapping[str, float] = job["write" if rw == "write" else "read"]
    return found
