"""What a fork does to be the program that an interpreter would be with the same words."""

import atexit
import contextlib
import ctypes
import itertools
import os
import random
import resource
import runpy
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Sequence
from io import FileIO, TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch

from paramfleet_worker.process.prepared.starting import num_options

__all__ = ["close_all_but", "run", "take_place"]


_FOLDERS = tuple(sys.path[0 if sys.flags.safe_path else 1 :])
"""Where an interpreter looks behind the folder of its program."""


class _Executes(BaseException):
    """A script would become this command."""

    def __init__(self, command: list[str]) -> None:
        super().__init__()
        self.command = command


def close_all_but(keep: Collection[int]) -> None:
    """Close every descriptor but these and the standard streams."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2 and int(path.name) not in keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(path.name))


def take_place(
    request: dict[str, Any], streams: Sequence[int], *, keep: Collection[int]
) -> None:
    """Take the request's streams, folder, environment and limits, and new random numbers."""
    if request["session"]:
        os.setsid()
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
    close_all_but(keep)
    os.chdir(request["cwd"])
    os.environ.clear()  # noqa: TID251 - the fork's own
    os.environ.update(request["environment"])  # noqa: TID251
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["open_files"]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    np.random.seed()
    threads = request["environment"].get("OMP_NUM_THREADS", 1)  # more would spin on busy cores
    torch.set_num_threads(int(threads))


def run(words: Sequence[str]) -> NoReturn:
    """Run a command of this interpreter, and end as it would."""
    try:
        program = list(words)
        while program[1:3] == ["-I", "-S"]:
            program = _executed_by(program[3:])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as an interpreter begins
            signal.signal(number, signal.SIG_IGN)
        _show(program)
        _run(program[1:])
        code = 0
    except SystemExit as ended:
        code = _code_of(ended)
    except BaseException as error:  # noqa: BLE001 - the end of a process
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _executed_by(script: list[str]) -> list[str]:
    """Run a script that becomes a command, such as a tie; return the command instead.

    Raises:
        SystemExit: if it ends without.
    """

    def execute(_: str, command: list[str]) -> NoReturn:
        raise _Executes(command)

    sys.argv = script
    executes, os.execvp = os.execvp, execute  # type: ignore[assignment]
    try:
        runpy.run_path(script[0], run_name="__main__")
    except _Executes as asked:
        return asked.command
    finally:
        os.execvp = executes
    raise SystemExit(0)


def _run(words: list[str]) -> None:
    options = words[: num_options(words)]
    del words[: len(options)]
    for kind, value in itertools.pairwise([*options, ""]):
        if kind == "-W":
            sys.warnoptions.append(value)
            warnings._setoption(value)  # type: ignore[attr-defined]
    is_unbuffered = "-u" in options or bool(os.environ.get("PYTHONUNBUFFERED"))  # noqa: TID251
    _open_streams(is_unbuffered=is_unbuffered)
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[:] = _FOLDERS if "-P" in options else [str(Path.cwd()), *_FOLDERS]
        for name in (words[1], f"{words[1]}.__main__"):
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)  # imported to be forked, not to be the program
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path[:] = [str(Path(words[0]).resolve().parent), *_FOLDERS]
    main = ModuleType("__main__")
    main.__file__ = str(Path(words[0]).absolute())
    sys.modules["__main__"] = main
    source = Path(words[0]).read_bytes()
    exec(compile(source, main.__file__, "exec"), main.__dict__)


def _open_streams(*, is_unbuffered: bool) -> None:
    """Open the standard streams anew, buffered as an interpreter does."""
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for name, descriptor, errors in (
        ("stdout", 1, "strict"),
        ("stderr", 2, "backslashreplace"),
    ):
        stream: TextIOWrapper
        if is_unbuffered:
            raw: Any = FileIO(descriptor, "w", closefd=False)
            stream = TextIOWrapper(raw, "utf-8", errors, write_through=True)
        else:
            lines = 1 if descriptor == 2 or os.isatty(descriptor) else -1
            stream = open(  # noqa: SIM115
                descriptor, "w", lines, "utf-8", errors, closefd=False
            )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _code_of(ended: SystemExit) -> int:
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    if ended.code is not None:
        print(ended.code, file=sys.stderr)
    return int(ended.code is not None)


def _show(words: Sequence[str]) -> None:
    """Let /proc name this command line: it is written over that of the prepared process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))
