"""How a process joins that hosts the one group of its index."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.hosting.folders import claimed_or_found, made
from paramfleet_pserver.hosting.group import GroupParts, HostedGroup
from paramfleet_shared.discovery.errors import (
    IndexTakenError,
    JobFullError,
    WrongDataFolderError,
)
from paramfleet_shared.discovery.session import JobSession

__all__ = ["join_alone", "join_with_run"]

log = logging.getLogger(__name__)

_ENDED = (
    "the job that wrote them has ended; a new job starts from the beginning, unless it "
    "continues from a checkpoint (--resume)"
)


async def join_alone(
    group: HostedGroup, parts: GroupParts, *, endpoint: str, admin: str
) -> JobSession:
    """Become a member; where the training is kept on a disk, with its folder.

    Args:
        group: Gets session and folder.
        parts: Of the process.
        endpoint: ``host:port`` of the group's data plane, which serves already.
        admin: ``host:port`` of the process's admin address.

    Raises:
        LogInUseError: if another process has the folder.
        JobFullError: if all places are held.
        IndexTakenError: if another live process has the index.
        WrongDataFolderError: if the folder isn't that of the index's former process.
        FleetError: as ``JobSession.join``.
    """
    settings = parts.settings
    folder = await claimed_or_found(settings, parts.clock)
    join = partial(
        JobSession.join,
        settings,
        role="pserver",
        endpoint=endpoint,
        admin=admin,
        clock=parts.clock,
        tracing=parts.tracing,
        durable=settings.durability != "none",
    )
    if folder is None:
        session = await join(index=settings.index)
    else:
        try:
            session = await join_with_run(folder, join)
        except (JobFullError, IndexTakenError, WrongDataFolderError):
            folder.close()
            if settings.index is not None:
                raise
            folder = None  # it was found, and is what another run has left
            session = await join(index=None)
    group.take_place(session)  # what follows may fail: it has to leave then
    if settings.durability != "none":
        folder = folder or await made(settings, session.member.index)
        group.folder = folder
        await asyncio.to_thread(folder.begin, session.run_id)
        removed = await asyncio.to_thread(folder.remove_runs, but=session.run_id)
        if removed:
            log.warning("pserver.data_removed", extra={"runs": removed, "reason": _ENDED})
    return session


async def join_with_run(
    folder: DataFolder, join: Callable[..., Awaitable[JobSession]]
) -> JobSession:
    """Join with the newest run of a folder; if the job names another that is there, with that.

    Raises:
        WrongDataFolderError: if the job's run isn't there.
        FleetError: as ``JobSession.join``.
    """
    newest = folder.run_id
    try:
        return await join(index=folder.index, holds_run=newest)
    except WrongDataFolderError as error:
        if error.run == newest or error.run not in folder.run_ids:
            raise
        return await join(index=folder.index, holds_run=error.run)
