"""The shell that runs a pipe command: one that reports each program of a pipeline that failed.

Without that, ``reader | cat`` succeeds although the reader failed: its output ends early, and
what was written until then looks like all data.

Readers name the interpreter that their author had, as ``python3.7``. Where that isn't there, or
doesn't run, the interpreter of this process takes its place.
"""

import functools
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from paramfleet_shared.errors import ContractError

__all__ = [
    "STOPPED_BY_READER",
    "NoPipefailError",
    "is_pipeline",
    "shell_command",
    "with_running_interpreter",
]

log = logging.getLogger(__name__)

STOPPED_BY_READER = 128 + 13
"""Exit status of a pipeline with a program that SIGPIPE ended: a later one needed no more."""

_INTERPRETER = re.compile(
    r"(?P<before>(?:^|[|;&(])\s*(?:(?:env|exec|nice|time)\s+|\w+=\S*\s+)*)"
    r"(?P<name>(?:[\w.+/-]*/)?python(?:\d(?:\.\d+)?)?)(?=\s|$)"
)
"""A Python interpreter where the shell takes a word for a program."""

_START_S = 30.0

_PIPES = frozenset({"|", "|&"})


class NoPipefailError(ContractError):
    """A pipe command is a pipeline, and no shell here reports which of its programs failed."""

    code = "contract.no_pipefail"
    command: str
    sentence = (
        "pipe_command {command!r} is a pipeline, and /bin/sh reports only whether its last "
        "program failed: install bash, or use one program"
    )


def shell_command(command: str, *, path: str | None = None) -> list[str]:
    """Return the program and arguments that run a command with the option ``pipefail``.

    Args:
        command: For the shell.
        path: Folders in which ``bash`` is searched; by default those of PATH.

    Raises:
        NoPipefailError: if it is a pipeline, and neither bash nor /bin/sh has the option.
    """
    command = with_running_interpreter(command)
    bash = shutil.which("bash", path=path)
    if bash:
        return [bash, "--norc", "-o", "pipefail", "-c", command]
    if _sh_has_pipefail():
        return ["/bin/sh", "-o", "pipefail", "-c", command]
    if is_pipeline(command):
        raise NoPipefailError(command=command)
    return ["/bin/sh", "-c", command]


def is_pipeline(command: str) -> bool:
    """Return whether a command connects programs by ``|``; quoted ones don't count."""
    words = shlex.shlex(command, posix=False, punctuation_chars="|&;()<>")
    try:
        return any(word in _PIPES for word in words)
    except ValueError:  # a quotation that doesn't end: the shell will say it
        return "|" in command


@functools.cache
def _sh_has_pipefail() -> bool:
    """Return whether /bin/sh has the option; dash doesn't, BusyBox does."""
    tried = subprocess.run(
        ["/bin/sh", "-c", "set -o pipefail"], capture_output=True, check=False
    )
    return tried.returncode == 0


def with_running_interpreter(command: str) -> str:
    """Return a command with this process's interpreter instead of those that don't run here."""

    def replaced(found: re.Match[str]) -> str:
        name = found["name"]
        return found["before"] + (name if _runs(name) else shlex.quote(sys.executable))

    return _INTERPRETER.sub(replaced, command)


@functools.cache
def _runs(name: str) -> bool:
    """Return whether an interpreter is there and starts; the log says once that one doesn't.

    A shim of a version manager is there, and doesn't start if its version isn't installed.
    """
    own = Path(sys.executable).parent
    path = os.pathsep.join([str(own), *os.get_exec_path()])
    found = shutil.which(name, path=path)
    if found is not None and Path(found).parent == own:
        return True
    try:
        if found is not None:
            words = [found, "-c", ""]
            tried = subprocess.run(words, capture_output=True, check=False, timeout=_START_S)  # noqa: S603 - the user's own word
            if tried.returncode == 0:
                return True
    except (OSError, subprocess.TimeoutExpired):
        pass
    facts = {"interpreter": name, "remedy": f"{sys.executable} runs the command instead"}
    log.warning("worker.interpreter_replaced", extra=facts)
    return False
