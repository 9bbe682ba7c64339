"""What ``fleet.run_server()`` runs: the pserver that is installed."""

import importlib.metadata
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paramfleet.config.roles import RoleMaker
from paramfleet.config.settings import read_settings

__all__ = ["serve"]


def serve(role: RoleMaker, *, load: str | None, checkpoint_dirs: Sequence[Path] = ()) -> None:
    """Serve until the job is finished.

    Args:
        role: What the environment, or the script, says of this server.
        load: Folder of the tables to start from; None starts afresh.
        checkpoint_dirs: Folders of checkpoints beside those of the setting.

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
    if checkpoint_dirs:
        own = read_settings(host=role.host).checkpoint_dirs or "."
        arguments["checkpoint_dirs"] = os.pathsep.join([own, *map(str, checkpoint_dirs)])
    entry.load()(arguments)
