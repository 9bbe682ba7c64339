"""Runs a cell: a launched job whose numbers are known, hurt amid its training."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path

from tests.matrix.cells import FAULTS, GRACE_S, Cell, Outcome, judge

from paramfleet_shared.discovery.redis.serving import find_redis_server
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.verify.running import Job, Ran, run_plan

__all__ = ["run_cell"]

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *shift_s;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK_SHIFT"), O_RDONLY);
    if (file >= 0) shift_s = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    if (!code && shift_s) now->tv_sec += *shift_s;
    return code;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (!code && shift_s && clock == CLOCK_REALTIME) now->tv_sec += *shift_s;
    return code;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""
"""Shifts the time of day of a program that isn't ours, by a file that others write."""

REUSED_S = 3.0
"""How long somebody else has a port."""

BEAT_S = 0.3
"""Until a member has received an order."""

Act = Callable[[Job], Awaitable[None]]


async def run_cell(cell: Cell, folder: Path, clock: Clock) -> tuple[Outcome, Ran]:
    """Run a cell in an empty folder."""
    environment = {
        **read_environment(),
        "PARAMFLEET_CALL_TIMEOUT_S": str(3 * GRACE_S),
        "PARAMFLEET_COORDINATOR__WORKER_GRACE_S": str(GRACE_S),
        "PARAMFLEET_COORDINATOR__SERVER_GRACE_S": str(GRACE_S),
    }
    act: Act | None = None
    if cell.fault == "port reuse":
        act = _reuse_ports(cell, clock)
    elif (cell.role, cell.fault) == ("redis", "clock +1 h"):
        shift = folder / "shift"
        environment |= _shifted_redis(folder, shift, environment)
        act = _shift(shift, 3600)
    ran = await run_plan(cell.plan, folder, environment, clock, act=act)
    return judge(cell, ran.problems, ran.last_words, _after_s(cell, ran)), ran


def _after_s(cell: Cell, ran: Ran) -> float | None:
    """Return how long it took to recover, or to end."""
    if ran.hurt_at is None:
        return None
    if not ran.found:
        return ran.ended_at - ran.hurt_at
    over = ran.hurt_at + FAULTS[cell.fault].lasts_s + BEAT_S
    ends = []
    for worker in ran.found:
        times = worker["times"]
        ends.append(next((end for begin, end in pairwise(times) if begin >= over), None))
    known = [end for end in ends if end is not None]
    return max(known, default=over) - over


def _shift(file: Path, seconds: int) -> Act:
    async def act(_: Job) -> None:
        await asyncio.to_thread(_overwrite, file, struct.pack("l", seconds))

    return act


def _overwrite(file: Path, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.write(content)


def _shifted_redis(folder: Path, shift: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return what has a job start a Redis whose time of day can be shifted."""
    program, programs = find_redis_server(), folder / "programs"
    programs.mkdir()
    shift.write_bytes(struct.pack("l", 0))
    source, shim = programs / "shim.c", programs / "shim.so"
    source.write_text(SHIM)
    command = ["cc", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"]
    subprocess.run(tied(command), check=True)
    wrapper = programs / "redis-server"
    wrapper.write_text(
        f'#!/bin/sh\nCLOCK_SHIFT={shift} LD_PRELOAD={shim} exec {program} "$@"\n'
    )
    wrapper.chmod(0o755)
    return {"PATH": f"{programs}{os.pathsep}{environment['PATH']}"}


def _reuse_ports(cell: Cell, clock: Clock) -> Act:
    """Kill a process, and take its ports before it is there again."""
    name = "pserver-0" if cell.role == "pserver" else "coordinator-0"

    async def act(job: Job) -> None:
        pid = job.pid_of(name) if cell.role == "pserver" else _coordinator(job.launcher_pid)
        ports = sorted(_ports_of(pid))
        assert ports, f"{name} listens nowhere"
        os.kill(pid, signal.SIGKILL)
        with contextlib.ExitStack() as stack:
            for port in ports:
                stack.enter_context(await _taken(port, clock))
            await clock.sleep(REUSED_S)

    return act


async def _taken(port: int, clock: Clock) -> socket.socket:
    """Return a socket that listens on a port as soon as that is free; it answers nobody."""
    while True:
        taken = socket.socket()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", port))
            taken.listen()
        except OSError:
            taken.close()
            await clock.sleep(0.001)
        else:
            return taken


def _coordinator(launcher: int) -> int:
    """Return the coordinator that a launcher has started.

    Raises:
        ProcessLookupError: if there is none.
    """
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(OSError):
            if "paramfleet_coordinator" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    raise ProcessLookupError("coordinator")


def _ports_of(pid: int) -> Iterator[int]:
    """Yield the TCP ports on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                inodes.add(found[1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            yield int(words[1].partition(":")[2], 16)
