"""Changes of a running job: written to a folder of this process's own, and followed there.

So a job is served as a folder is: rows mapped from files, memory bounded, former versions there
to go back to. Nobody but this process needs the folder, which goes with it; where it is killed,
the next one that follows a job removes it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import final

from paramfleet_serving.following.folder import FolderSource
from paramfleet_serving.following.source import Event
from paramfleet_serving.jobs.exporting import Exporter, ExportPlan
from paramfleet_serving.jobs.finding import found_settings
from paramfleet_serving.store.model import Version
from paramfleet_shared.deltas.reader import Accept
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.files.held import FolderKind, ProcessFolder
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock

__all__ = ["JobSource"]

KEPT_BASES = 2

_KIND = FolderKind(prefix="paramfleet-stream-", lock="process.lock", always_locked=False)


@final
class JobSource:
    """Follows a job, and after its end the next run of it.

    Args:
        settings: Which job, where its registry is, and what proves that it may be read.
        cache_dir: Where the folder is made; there must be room for all rows some times.
        plan: How often changes are asked for.
        clock: Time.
        poll_s: Seconds between two looks at what was written.

    Raises:
        OSError: if the folder can't be made.
    """

    def __init__(
        self,
        settings: JobSettings,
        cache_dir: Path,
        plan: ExportPlan,
        *,
        clock: Clock,
        poll_s: float,
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._clock = clock
        self._kept = ProcessFolder(cache_dir, _KIND)
        self._folder = self._kept.path
        self._source = FolderSource(self._folder, clock=clock, poll_s=poll_s)
        self._exporting: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Return which job."""
        return f"job {self._settings.job}"

    async def events(self, after: Version | None, *, accept: Accept) -> AsyncIterator[Event]:
        """Yield what comes, without an end; see ``Source``.

        Raises:
            FleetError: if the job can't be followed, or something is wrong with what comes.
            OSError: if there is no room for it.
        """
        exporting = self._begun()
        found = self._source.events(after, accept=accept)
        async with aclosing(found) as events:  # type: ignore[type-var]  # a generator
            while True:
                following = asyncio.ensure_future(anext(events))  # noqa: TID251 - awaited below
                try:
                    await asyncio.wait(
                        (following, exporting), return_when=asyncio.FIRST_COMPLETED
                    )
                    if exporting.done():
                        exporting.result()
                    event = await following
                finally:
                    if not following.done():
                        following.cancel()
                        with suppress(asyncio.CancelledError):
                            await following
                yield event

    def replay(
        self, number: int, *, accept: Accept, stream: str | None = None
    ) -> AsyncIterator[Event]:
        """Yield a base, and the changes from there to a number; see ``Source``."""
        return self._source.replay(number, accept=accept, stream=stream)

    async def newest_base(self) -> Version | None:
        """Return the newest base; see ``Source``.

        Raises:
            FleetError: if something is wrong.
            OSError: if it can't be read.
        """
        return await self._source.newest_base()

    async def close(self) -> None:
        """Follow the job no longer, and remove the folder."""
        if self._exporting is not None:
            self._exporting.cancel()
            await asyncio.wait((self._exporting,))
        await asyncio.to_thread(self._kept.remove)

    def _begun(self) -> asyncio.Task[None]:
        """Return the task that writes the folder, another one if it has failed."""
        if self._exporting is None or self._exporting.done():
            writer = StreamWriter(
                self._folder,
                clock=self._clock,
                keep_bases=KEPT_BASES,
                disk=StreamDisk(syncs=False),  # it goes with this process
            )
            find = partial(found_settings, self._settings)
            exporter = Exporter(find, writer, self._plan, clock=self._clock)
            self._exporting = asyncio.get_running_loop().create_task(exporter.run())
        return self._exporting
