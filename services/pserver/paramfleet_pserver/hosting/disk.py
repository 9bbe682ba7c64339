"""A group's folder on this process's disk: begun, claimed and noted, also if the disk refuses.

What the disk refuses is tried again, as it may have room later, and said every few seconds. A
process that ended instead would take its other groups with it.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.hosting.folders import claimed, note_owned
from paramfleet_pserver.hosting.group import GroupParts, HostedGroup
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.errors.logs import (
    DataFolderError,
    DiskFailingError,
    DiskFullError,
    LogInUseError,
)
from paramfleet_shared.telemetry.seldom import SeldomWarning

__all__ = ["Begun", "GroupDisk"]

RETRY_S = 0.5
"""Seconds after an attempt that the disk refused."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = _FULL | {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY}
"""What a disk, or one of the network, may refuse with and be well later."""

log = logging.getLogger(__name__)


class Begun(NamedTuple):
    """The locked folder of a group, in which there is one of the run."""

    folder: DataFolder
    held_run: int
    """The run that was begun last there before; 0 for none."""


class GroupDisk:
    """What a process does about one group's folder. Used from one event loop.

    Args:
        parts: Of the process; its groups are kept on a disk.
        group: Which.
    """

    def __init__(self, parts: GroupParts, group: int) -> None:
        self._settings = parts.settings
        self._clock = parts.clock
        self._group = group
        self._not_free = SeldomWarning(log, "group.folder_not_free", parts.clock)
        self._not_noted = SeldomWarning(log, "group.not_noted", parts.clock)

    async def begin(self, run_id: int, *, has_begun: bool) -> Begun:
        """Lock the folder, once no other process has it, and have one for a run there.

        Args:
            run_id: The run.
            has_begun: Whether the group has: others wait for it then, and this process may have
                other groups, so that its end would cost more than waiting for help.

        Raises:
            LogInUseError: if another process goes on having it.
            DiskFullError: if there is no room for it; there may be later.
            DiskFailingError: if the disk refuses it in another way, and may not do so later.
            DataFolderError: if it can't be used, and the group hasn't begun.
        """
        try:
            return await self._begin(run_id)
        except DataFolderError as error:
            refused = _passing(error, has_begun=has_begun)
            if refused is None:
                raise
            raise refused from error

    async def claim(self, hosted: HostedGroup, session: JobSession) -> None:
        """Have the folder of a group that was taken over, as soon as no other process has it.

        Raises:
            CancelledError: if it was cancelled.
        """
        while hosted.folder is None:
            try:
                disk = await self._begin(session.run_id)
            except (LogInUseError, DataFolderError) as error:
                self._not_free.warn(group=self._group, reason=str(error))
                await self._clock.sleep(RETRY_S)
            else:
                hosted.folder = disk.folder

    async def note(self, hosted: HostedGroup, session: JobSession) -> None:
        """Have the disk say under which term the group is owned, once it takes that.

        What former runs have left is removed first, which may make the room for it.

        Raises:
            CancelledError: if it was cancelled.
        """
        assert hosted.folder is not None, "it has begun"
        run_id, term = session.run_id, session.member.incarnation
        try:
            await _ended(partial(hosted.folder.remove_runs, but=run_id))
        except DataFolderError as error:  # it only takes room
            facts = {"group": self._group, "reason": str(error)}
            log.warning("pserver.data_not_removed", extra=facts)
        noting = partial(note_owned, self._settings, self._group, run_id, term)
        while not hosted.is_noted:
            try:
                await _ended(noting)
            except (OSError, ValueError) as error:
                self._not_noted.warn(group=self._group, reason=str(error))
                await self._clock.sleep(RETRY_S)
            else:
                hosted.is_noted = True

    async def _begin(self, run_id: int) -> Begun:
        """Lock the folder, and have one for a run there.

        Raises:
            LogInUseError: if another process goes on having it.
            DataFolderError: if the system refuses; it isn't locked then.
        """
        folder = await claimed(self._settings, self._group, self._clock)
        assert folder is not None, "it is kept on a disk"
        try:
            held_run = folder.run_id
            await asyncio.to_thread(folder.begin, run_id)
        except BaseException:
            folder.close()
            raise
        return Begun(folder, held_run)


def _passing(error: DataFolderError, *, has_begun: bool) -> UnavailableError | None:
    """Return what to try again for; None if the folder won't do without somebody's help."""
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number in _FULL:
        return DiskFullError(path=error.path, reason=str(cause))
    if has_begun or number in _PASSING:
        return DiskFailingError(path=error.path, reason=error.reason)
    return None


async def _ended(call: Callable[[], object]) -> None:
    """Run a call in a thread; a cancellation waits for its end.

    Else it could change the folder when the next owner has it.

    Raises:
        CancelledError: if it was cancelled.
    """
    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()  # it was seen
        raise
