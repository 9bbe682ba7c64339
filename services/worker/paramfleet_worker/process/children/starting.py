"""How a process of the job is started, whatever it begins with."""

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

from paramfleet_shared.system.processes.keeping import Keeper
from paramfleet_worker.process.prepared.sharing import SharedImports

__all__ = ["start_with_pipes"]


def start_with_pipes(
    command: Sequence[str],
    environment: Mapping[str, str],
    keeper: Keeper,
    imports: SharedImports | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with unbuffered pipes as its standard streams.

    Args:
        command: Program and arguments.
        environment: All of its environment.
        keeper: Receives its group.
        imports: What it may be a fork of.

    Raises:
        OSError: if it can't be started.
    """
    with imports.starting() if imports is not None else contextlib.nullcontext():
        process = subprocess.Popen(  # noqa: S603 -- the user's own command, or our module
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            bufsize=0,
            start_new_session=True,
        )
    keeper.add(process.pid)
    return process
