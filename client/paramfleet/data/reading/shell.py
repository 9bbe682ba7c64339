"""The shell that runs a pipe command: one that reports each program of a pipeline that failed.

Without that, ``reader | cat`` succeeds although the reader failed: its output ends early, and
what was written until then looks like all data.
"""

import functools
import shlex
import shutil
import subprocess

from paramfleet_shared.errors import ContractError

__all__ = ["STOPPED_BY_READER", "NoPipefailError", "is_pipeline", "shell_command"]

STOPPED_BY_READER = 128 + 13
"""Exit status of a pipeline with a program that SIGPIPE ended: a later one needed no more."""

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
