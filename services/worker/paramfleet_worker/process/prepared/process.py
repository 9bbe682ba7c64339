"""The prepared process: ``python process.py DESCRIPTOR PADDING [MODULE ...]``.

Importing torch, and what the first optimizer and the kernels need, takes seconds; a fork
takes milliseconds. What runs in a fork is the program that was asked for, from its first line
to its exit handlers; ``starting.py`` asks for it. The padding is room for the command lines
of forks.

It can be run by ``-m`` with this module's name, too. Without modules it imports what any
program of a job needs before it forks. With them it is one launch's (``sharing.py``), and says
when it has imported what pservers need, and when what workers need.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from paramfleet_shared.system.processes.tether import tie
from paramfleet_worker.process.prepared.program import (
    close_all_but,
    is_shadowed,
    note_start,
    run,
    take_place,
)
from paramfleet_worker.process.prepared.starting import READY, REFUSED, Prepared, receive

IMPORTED = (
    "paramfleet.runner.__main__",
    "paramfleet.session.backends.pservers",
    "paramfleet_coordinator.app",
    "paramfleet_pserver.app",
    "paramfleet_worker.__main__",
    "torch._dynamo",
    "torch.distributed.run",
)
"""Modules of the programs that are forked, and what torch's first optimizer imports."""

OF_PSERVERS = ("torch", "paramfleet.api.public", "paramfleet_pserver.app")
"""What a script imports before it is a pserver, and what it is then."""

SYS_CLONE3 = 435
CLONE_PARENT = 0x8000
CLONE_CHILD_CLEARTID = 0x200000
CLONE_CHILD_SETTID = 0x1000000
PR_GET_TID_ADDRESS = 40


def fork_sibling() -> int:
    """Fork a child of our parent.

    Returns:
        Its process id, 0 in the child, a negative number where the system can't.
    """
    interpreter, system = ctypes.pythonapi, ctypes.PyDLL(None)
    system.syscall.restype = ctypes.c_long
    found = ctypes.c_uint64()  # where the C library keeps our thread's id, for its own fork
    system.prctl(PR_GET_TID_ADDRESS, ctypes.byref(found))
    flags = CLONE_PARENT | (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID if found.value else 0)
    arguments = (ctypes.c_uint64 * 8)(flags, 0, found.value)  # struct clone_args
    interpreter.PyOS_BeforeFork()
    pid: int = system.syscall(
        SYS_CLONE3, ctypes.byref(arguments), ctypes.c_size_t(ctypes.sizeof(arguments))
    )
    if pid:
        interpreter.PyOS_AfterFork_Parent()
    else:
        interpreter.PyOS_AfterFork_Child()
    return pid


def may_fork() -> bool:
    """Return whether a fork has all of this process: its only thread, and no GPU's state."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return False
    for each in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the listing's own
            if str(each.readlink()).startswith("/dev/nvidia"):
                return False
    return True


def serve(line: socket.socket) -> None:
    """Fork what is asked for, until the next part is to be imported.

    The process ends when nobody is left who could ask.
    """
    while (asked := receive(line)) is not None:
        request, descriptors = asked
        if not request:
            return
        pid = REFUSED
        if may_fork() and not is_shadowed(request["words"], request["cwd"]):
            pid = fork_sibling()
        if not pid:
            *streams, permit = descriptors
            if not os.read(permit, 1):
                os._exit(1)  # whoever asked has executed the program instead, or has ended
            _live(request, streams)
        line.send(str(pid).encode())
        for descriptor in descriptors:
            os.close(descriptor)
    os._exit(0)


def _live(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the program that was asked for, and end as it does."""
    helper = _helper() if request["starts"] else None
    with contextlib.ExitStack() as stack:
        if helper is not None:
            stack.enter_context(
                Prepared(lambda: helper, starters=False, modules=request["modules"]).starting()
            )
        take_place(request, streams, keep=() if helper is None else (helper.fileno(),))
        run(request["words"])


def _helper() -> socket.socket:
    """Return a line to a fork of this process as it is now, which forks in its turn."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    starter = os.getpid()
    if os.fork():
        its.close()
        return ours
    if not tie(starter):
        os._exit(1)
    close_all_but((its.fileno(),))
    serve(its)
    os._exit(0)


def prepare(modules: Sequence[str], *, kernels: Literal["all", "usual"] | None) -> None:
    """Import modules, and let forks have their pages for as long as they can."""
    gc.disable()  # a collection would look at all of torch
    for name in modules:
        importlib.import_module(name)
    if kernels is not None:
        warm = importlib.import_module("paramfleet_shared.tables.warm")
        warm.main(warm.chosen(["all"])) if kernels == "all" else warm.warm_usual()
    for each in weakref.finalize._registry:  # type: ignore[attr-defined]
        each.atexit = False  # torch takes thousands of kernels back, and the process ends
    gc.freeze()  # a collection would copy their pages into every fork
    gc.enable()


def main() -> NoReturn:
    """Prepare, then fork until the starter ends."""
    line = socket.socket(fileno=int(sys.argv[1]))
    note_start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    modules = sys.argv[3:]
    if modules:
        prepare(OF_PSERVERS, kernels="usual")
        line.send(READY)
        serve(line)
        prepare(modules, kernels=None)
        line.send(READY)
    else:
        prepare(IMPORTED, kernels="all")
    serve(line)
    os._exit(0)


if __name__ == "__main__":
    main()
