"""The prepared process: ``python -m MODULE DESCRIPTOR PADDING``, with this module's name.

Importing torch, and what the first optimizer and the kernels need, takes seconds; a fork
takes milliseconds. What runs in a fork is the program that was asked for, from its first line
to its exit handlers; ``starting.py`` asks for it. The padding is room for the command lines
of forks.
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
from typing import Any, NoReturn

from paramfleet_shared.system.processes.tether import tie
from paramfleet_shared.tables.warm import main as load_kernels
from paramfleet_worker.process.prepared.program import close_all_but, run, take_place
from paramfleet_worker.process.prepared.starting import Prepared, receive

IMPORTED = (
    "paramfleet.runner.__main__",
    "paramfleet_coordinator.app",
    "paramfleet_pserver.app",
    "paramfleet_worker.__main__",
    "torch._dynamo",
    "torch.distributed.run",
)
"""Modules of the programs that are forked, and what torch's first optimizer imports."""

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


def serve(line: socket.socket) -> NoReturn:
    """Fork what is asked for until nobody is left who could ask."""
    while (asked := receive(line)) is not None:
        request, streams = asked
        pid = fork_sibling()
        if not pid:
            _live(request, streams)
        line.send(str(pid).encode())
        for descriptor in streams:
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


def main() -> None:
    """Prepare, then fork until the starter ends."""
    line = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    load_kernels()
    for each in weakref.finalize._registry:  # type: ignore[attr-defined]
        each.atexit = False  # torch takes thousands of kernels back, and the process ends
    gc.collect()
    gc.freeze()  # a collection would copy their pages into every fork
    serve(line)


if __name__ == "__main__":
    main()
