"""Start Python programs as forks of a prepared process, wherever ``subprocess`` starts them.

A prepared process has imported everything (``process.py``). What it forks becomes a child of
whoever asked for it, so that pids, exit codes, groups and ties are those of any other child.
It gets the words, the environment, the folder and the standard streams that ``subprocess``
would have given to a new interpreter. It begins when whoever asked has its id, and says so; a
fork that comes too late for that ends, because the program is executed by then. A program that
can't begin so is executed as ever, and each one where the system has no ``clone3``.
"""

import _posixsubprocess
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from paramfleet_shared.settings.config import read_environment

__all__ = ["READY", "REFUSED", "Prepared", "is_forking", "num_options", "receive"]

COORDINATOR = "paramfleet_coordinator"

MODULES = frozenset(
    {
        COORDINATOR,
        "paramfleet.runner",
        "paramfleet_pserver",
        "paramfleet_worker",
        "torch.distributed.run",
    }
)
"""Modules that are forked; so is any script."""

WRAPPERS = {"tether.py": 6, "pinned.py": 5}
"""Scripts that become their command, and which of all words is its first."""

OF_INTERPRETERS = ("PYTHON", "NUMBA_", "LD_")
"""Begins of variables that are read before a program can say anything."""
EMULATED = "PYTHONUNBUFFERED"
PATH = "PYTHONPATH"

READY = b"ready"
"""What a prepared process says when it has imported a part of what it is to."""

REFUSED = -1
"""Answer where a request isn't forked."""

MAX_BYTES = 1 << 17
"""Longest request: what a datagram of the system holds at least."""


def num_options(words: Sequence[str]) -> int:
    """Return how many words after the interpreter's are options that a fork can have."""
    count = 0
    while words[count] in {"-u", "-W", "-P"}:
        count += 1 + (words[count] == "-W")
    return count


def _can_be_forked(
    words: Sequence[str], environment: dict[str, str], more: Collection[str]
) -> bool:
    """Return whether a command is one of our interpreter that a fork can begin with."""
    while list(words[:3]) == [sys.executable, "-I", "-S"]:
        words = words[WRAPPERS.get(Path(words[3]).name, len(words)) :]
    if len(words) < 2 or words[0] != sys.executable:
        return False
    program = words[1 + num_options(words[1:]) :]
    if not (
        program[0].endswith(".py") or (program[0] == "-m" and program[1] in {*MODULES, *more})
    ):
        return False
    ours = read_environment()
    names = {
        name
        for name in ours.keys() | environment.keys()
        if name.startswith(OF_INTERPRETERS) and name != EMULATED
    }
    paths = environment.get(PATH, "").split(os.pathsep)
    if set(more) & set(program) and set(paths) <= set(sys.path):
        names.discard(PATH)  # it names the folders that we import from, too
    return all(ours.get(name) == environment.get(name) for name in names)


def is_forking() -> bool:
    """Return whether ``subprocess`` forks a prepared process here already."""
    return subprocess._fork_exec is not _posixsubprocess.fork_exec  # type: ignore[attr-defined]


class Prepared:
    """Asks a prepared process for forks. Any thread may start something.

    Args:
        open_line: Returns a connection to the process; called when it is first needed.
        starters: Whether what is forked forks what it starts in its turn; no member of a job
            does.
        modules: Programs beside ``MODULES`` that may be forked; what their ``PYTHONPATH`` names
            may be what we import from, too.
        is_needed: Whether it is an error if the process ends; else programs are executed then.
    """

    def __init__(
        self,
        open_line: Callable[[], socket.socket],
        *,
        starters: bool,
        modules: Collection[str] = (),
        is_needed: bool = True,
    ) -> None:
        self._is_needed = is_needed
        self._modules = tuple(modules)
        self._open_line = open_line
        self._starters = starters
        self._line: socket.socket | None = None
        self._one_at_a_time = threading.Lock()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Let ``subprocess`` fork what it would execute, on Linux."""
        if sys.platform != "linux":
            yield
            return
        executes = subprocess._fork_exec  # type: ignore[attr-defined]

        def start(*call: Any) -> int:
            asked = _asked(call, self._modules)
            pid: int = self._fork(*asked) if asked is not None else REFUSED
            return pid if pid > 0 else executes(*call)

        subprocess._fork_exec = start  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess._fork_exec = executes  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the prepared process, not what it has forked."""
        if self._line is not None:
            self._line.close()

    def _fork(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Return the id of the process; a negative number where the program is to be executed.

        Raises:
            OSError: if the prepared process has ended, and is needed.
        """
        is_member = "TRAINING_ROLE" in request["environment"] or COORDINATOR in request["words"]
        starts = self._starters and not is_member
        asks = json.dumps({**request, "starts": starts, "modules": self._modules}).encode()
        with self._one_at_a_time, _permit() as (permit, give):
            if self._line is None:
                self._line = self._open_line()
            try:
                socket.send_fds(self._line, [asks], [*streams, permit])
                answer = self._line.recv(MAX_BYTES)
            except OSError:
                if self._is_needed:
                    raise
                self._line.close()  # an answer that comes too late finds nobody
                return REFUSED
            if not answer and self._is_needed:
                msg = "the prepared process ended"
                raise OSError(msg)
            pid = int(answer or REFUSED)
            if pid > 0:
                os.write(give, b"\n")
        return pid


@contextlib.contextmanager
def _permit() -> Iterator[tuple[int, int]]:
    """Have a pipe: a fork that reads from it begins with a byte, and ends without one.

    Raises:
        OSError: if the system has none left.
    """
    permit, give = os.pipe()
    try:
        yield permit, give
    finally:
        os.close(permit)
        os.close(give)


def _asked(
    call: Sequence[Any], modules: Collection[str]
) -> tuple[dict[str, Any], list[int]] | None:
    """Return the request that stands for a call of ``_fork_exec``; None if none does."""
    (args, _, close_fds, kept, cwd, env, stdin, _, _, stdout, _, stderr) = call[:12]
    (errpipe, _, session, group, gid, gids, uid, umask, preexec) = call[13:22]
    words = [os.fsdecode(each) for each in args]
    if env is None:
        environment = dict(read_environment())
    else:
        pairs = (os.fsdecode(each).partition("=") for each in env)
        environment = {name: value for name, _, value in pairs}
    is_plain = close_fds and tuple(kept) == (errpipe,) and preexec is None
    is_ours = (group, gid, gids, uid, umask) == (-1, None, None, None, -1)
    if not (is_plain and is_ours and _can_be_forked(words, environment, modules)):
        return None
    request = {
        "words": words,
        "environment": environment,
        "cwd": os.fsdecode(cwd) if cwd is not None else str(Path.cwd()),
        "session": bool(session),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }
    given = (stdin, stdout, stderr)
    streams = [own if each == -1 else each for own, each in enumerate(given)]
    return request, streams


def receive(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request on the other side, with its streams and permit; None at the end.

    A fork begins once it has read a byte of its permit, and never if there is none.
    """
    data, streams, _, _ = socket.recv_fds(line, MAX_BYTES, 4)
    return (json.loads(data), streams) if data else None
