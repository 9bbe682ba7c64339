"""The nursery: imports once, then forks: ``python -m nursery.process``.

Importing torch, with what it leaves until the first optimizer is made, and loading compiled
kernels takes seconds of a core; a job of some processes, several times over, would spend a
benchmark's minutes on it. What runs in a fork is the same program with the same arguments and
environment as if it had been started.

Reads a JSON object a line and answers with the process id of the fork. The fork's standard
input and output are a connection to the Unix socket that it was given, its standard error
is a file. When the nursery ends, or its input does, all that it has forked ends.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch._dynamo  # noqa: F401 - for the forks: the first optimizer imports it

import paramfleet  # noqa: F401 - for the forks
import paramfleet_pserver.__main__  # noqa: F401 - for the forks
from paramfleet_shared.system.processes.tether import tie
from paramfleet_shared.tables.warm import chosen
from paramfleet_shared.tables.warm import main as warm

__all__: list[str] = []


def fork(arguments: Sequence[str], environment: Mapping[str, str], talk: str, log: str) -> int:
    """Return the process id of a fork that runs ``python ARGUMENTS``."""
    nursery = os.getpid()
    pid = os.fork()
    if not pid:
        if not tie(nursery):
            os._exit(1)
        _live(arguments, environment, talk, log)
    return pid


def _live(
    arguments: Sequence[str], environment: Mapping[str, str], talk: str, log: str
) -> NoReturn:
    code = 1
    try:
        _redirect(talk, log)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(environment)  # noqa: TID251 - this is the fork's own
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            sys.path[0] = str(Path(arguments[0]).parent)
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:  # noqa: BLE001 - the end of a process
        sys.excepthook(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()  # noqa: SLF001 - as an interpreter's end does
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _redirect(talk: str, log: str) -> None:
    """Talk over the socket, and complain into the file."""
    words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(words, 2)
    os.close(words)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(talk)
        os.dup2(line.fileno(), 0)
        os.dup2(line.fileno(), 1)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the fork
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115


def main() -> None:
    """Fork what is asked for, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.redirect_stdout(sys.stderr):
        warm(chosen(["all"]))
    gc.freeze()
    pids = []
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        pids.append(fork(**json.loads(line)))
        print(json.dumps(pids[-1]), flush=True)
    for pid in pids:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
