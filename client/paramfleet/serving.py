"""What ``fleet.run_server()`` runs: the pserver that is installed."""

import importlib.metadata
from typing import Any

from paramfleet.roles import RoleMaker

__all__ = ["serve"]


def serve(role: RoleMaker, *, load: str | None) -> None:
    """Serve until the job is finished.

    Args:
        role: What the environment, or the script, says of this server.
        load: Folder of the tables to start from; None starts afresh.

    Raises:
        JobFailedError: if a member of the job died.
    """
    (entry,) = importlib.metadata.entry_points(group="paramfleet.services", name="pserver")
    arguments: dict[str, Any] = {}
    if role.host is not None:
        arguments["host"] = role.host
    if role.port:
        arguments["port"] = role.port
    if role.index is not None:
        arguments["index"] = role.index
    if load is not None:
        arguments["load"] = load
    entry.load()(arguments)
