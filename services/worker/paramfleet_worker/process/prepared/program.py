"""What a fork does to be the program that an interpreter would be with the same words."""

import atexit
import builtins
import contextlib
import ctypes
import gc
import itertools
import os
import random
import resource
import runpy
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from paramfleet_shared.system.processes.ending import note_ending, note_exit
from paramfleet_shared.system.processes.started import note_environment
from paramfleet_worker.process.prepared.starting import num_options

__all__ = ["close_all_but", "is_shadowed", "note_start", "run", "take_place"]


_FOLDERS = tuple(sys.path[0 if sys.flags.safe_path else 1 :])
"""Where an interpreter looks behind the folder of its program."""


_PACKAGES = "site-packages"
"""Of the folders whose modules hold nothing that a program's end has to write."""


class _Start:
    """What this interpreter began with, which is what its forks begin with."""

    interrupt: Any = signal.default_int_handler
    """How it takes SIGINT: who ignores it has children that do."""
    threads: str | None = None
    """``OMP_NUM_THREADS``, which is read when torch is loaded."""
    modules: frozenset[str] = frozenset()
    """All that are imported when a program begins."""


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


def note_start() -> None:
    """Note what this interpreter began with; before anything changes it."""
    _Start.interrupt = signal.getsignal(signal.SIGINT)
    _Start.threads = os.environ.get("OMP_NUM_THREADS")  # noqa: TID251 - as it began
    here = str(Path(__file__).parent)
    if not sys.flags.safe_path and sys.path[0] == here:
        del sys.path[0]  # no program imports from here by short names


def is_shadowed(words: Sequence[str], folder: str) -> bool:
    """Return whether a script's folder has modules that it would import instead of ours.

    Args:
        words: Of the command; a script's own interpreter looks in its folder first.
        folder: Where it starts.
    """
    scripts = [each for each in words if each.endswith(".py")]
    if "-m" in words or not scripts or sys.flags.safe_path:
        return False
    place = Path(folder, scripts[-1]).resolve().parent
    try:
        found = [each for each in place.iterdir() if each.name != "__pycache__"]
    except OSError:
        return False
    for each in found:
        name, _, rest = each.name.partition(".")
        module = sys.modules.get(name)
        if (
            module is None
            or name == "__main__"
            or not (rest or (each / "__init__.py").exists())
        ):
            continue
        is_source = not rest or rest == "py" or rest.endswith("so")
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        is_first = origin in {None, "built-in", "frozen"}  # before any folder
        if is_source and not is_first and place not in Path(str(origin)).parents:
            return True
    return False


def take_place(
    request: dict[str, Any], streams: Sequence[int], *, keep: Collection[int]
) -> None:
    """Take the request's streams, folder, environment and limits, and new random numbers."""
    import numpy as np  # noqa: PLC0415 -- slow

    if request["session"]:
        os.setsid()
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
    close_all_but(keep)
    os.chdir(request["cwd"])
    environment: dict[str, str] = request["environment"]
    os.environ.clear()  # noqa: TID251 - the fork's own
    os.environ.update(environment)  # noqa: TID251
    note_environment(environment)
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["open_files"]))
    signal.signal(signal.SIGINT, _Start.interrupt)
    random.seed()
    np.random.seed()
    _set_threads(environment)
    _Start.modules = frozenset(sys.modules)


def _set_threads(environment: Mapping[str, str]) -> None:
    """Let libraries that are loaded have as many threads as if they were loaded now.

    This process has one of each, so that it can be forked.
    """
    wanted = environment.get("OMP_NUM_THREADS")
    if wanted != _Start.threads:
        import torch  # noqa: PLC0415 -- slow

        torch.set_num_threads(int(wanted or 1))  # more would spin on busy cores
    wanted = environment.get("OPENBLAS_NUM_THREADS", wanted)
    if wanted is None or (wanted.isdecimal() and int(wanted) > 1):
        _set_blas_threads(int(wanted) if wanted else len(os.sched_getaffinity(0)))


def _set_blas_threads(number: int) -> None:
    """Let numpy's linear algebra have its threads; where it is another library, it is left."""
    import numpy as np  # noqa: PLC0415 -- slow

    folders = (Path(np.__file__).parent.parent / "numpy.libs", Path(np.__file__).parent)
    for path in (each for folder in folders for each in folder.glob("*openblas*.so*")):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_"):
            if (setter := getattr(library, name, None)) is not None:
                setter(number)
                return


def run(words: Sequence[str]) -> NoReturn:
    """Run a command of this interpreter, and end as it would."""
    try:
        program = list(words)
        while program[1:3] == ["-I", "-S"]:
            program = _executed_by(program[3:])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as an interpreter begins
            signal.signal(number, signal.SIG_IGN)
        _show(program)
        note_ending()  # paramfleet is imported already
        _run(program[1:])
        code = 0
    except SystemExit as ended:
        note_exit(ended)
        code = _code_of(ended)
    except BaseException as error:  # noqa: BLE001 - the end of a process
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.with_traceback(trace)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        del error, trace
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _let_go()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _let_go() -> None:
    """End the program's own modules, so that what they write is whole.

    An interpreter ends all modules. Those that were imported before take a third of a second.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    sys.setswitchinterval(1000)  # threads that are left would meet modules that have ended
    names = [name for name in reversed(sys.modules) if name not in _Start.modules]
    own = ["__main__", *names]
    for module in filter(None, map(sys.modules.get, own)):
        if _PACKAGES in str(getattr(module, "__file__", None) or _PACKAGES):
            continue
        values = vars(module)
        for name in sorted(values, key=lambda each: not each.startswith("_")):
            if name != "__builtins__":
                values[name] = None
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    ctypes.PyDLL(None).fflush(None)


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
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    is_safe = "-P" in options or bool(os.environ.get("PYTHONSAFEPATH"))  # noqa: TID251
    if words[0] == "-m":
        sys.argv = words[:1] + words[2:]
        sys.path[:] = _FOLDERS if is_safe else [str(Path.cwd()), *_FOLDERS]
        for name in (words[1], f"{words[1]}.__main__"):
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)  # imported to be forked, not to be the program
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    sys.argv = words
    sys.path[:] = _FOLDERS if is_safe else [str(Path(words[0]).resolve().parent), *_FOLDERS]
    file = str(Path(words[0]).absolute())
    loader = SourceFileLoader("__main__", file)
    main.__dict__.update(__file__=file, __cached__=None, __loader__=loader)
    try:
        source = Path(file).read_bytes()
    except OSError as error:
        where = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {file!r}: {where}", file=sys.stderr)
        raise SystemExit(2) from error
    exec(compile(source, file, "exec"), main.__dict__)


def _open_streams(*, is_unbuffered: bool) -> None:
    """Open the standard streams anew, as an interpreter does."""
    kinds = [(stream.encoding, stream.errors) for stream in (sys.stdin, sys.stdout, sys.stderr)]
    for (name, mode), (encoding, errors) in zip(
        (("stdin", "r"), ("stdout", "w"), ("stderr", "w")), kinds, strict=True
    ):
        descriptor = ("stdin", "stdout", "stderr").index(name)
        raw: Any = FileIO(descriptor, mode, closefd=False)
        raw.name = f"<{name}>"
        buffer: Any = raw
        if mode == "r":
            buffer = BufferedReader(raw)
        elif not is_unbuffered:
            buffer = BufferedWriter(raw)
        stream: Any = TextIOWrapper(
            buffer,
            encoding,
            errors,
            newline=None if mode == "r" else "\n",
            line_buffering=not is_unbuffered and (name == "stderr" or os.isatty(descriptor)),
            write_through=is_unbuffered and mode == "w",
        )
        stream.mode = mode
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
    sys.orig_argv = list(words)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))
