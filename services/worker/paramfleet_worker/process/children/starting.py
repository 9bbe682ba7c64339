"""How a process of the job is started, whatever it begins with."""

import subprocess
from collections.abc import Mapping, Sequence

from paramfleet_shared.system.processes.keeping import Keeper

__all__ = ["start_with_pipes"]


def start_with_pipes(
    command: Sequence[str], environment: Mapping[str, str], keeper: Keeper
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with unbuffered pipes as its standard streams.

    Args:
        command: Program and arguments.
        environment: All of its environment.
        keeper: Receives its group.

    Raises:
        OSError: if it can't be started.
    """
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
