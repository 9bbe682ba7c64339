"""Telling the person who launches a job where its page is, and how to open it."""

import asyncio
from typing import Protocol

from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.job_folder import JobFolder, write_private
from paramfleet_shared.settings.config import JobSettings
from paramfleet_worker.app.operating import Operator, context_of
from paramfleet_worker.process.admin_token import token_in
from paramfleet_worker.process.console import Console
from paramfleet_worker.storage import JobRecords

__all__ = ["show_page"]

_TIMEOUT_S = 2.0


class HasPid(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its id; 0 until it runs."""
        ...


async def show_page(
    records: JobRecords,
    folder: JobFolder,
    settings: JobSettings,
    console: Console,
    coordinator: HasPid,
) -> None:
    """Keep the coordinator's admin address in the job's folder once it serves, and show it.

    In a terminal with a code that opens the page once; not elsewhere, because what is
    written there may be kept, and read by others.
    """
    admin = await records.admin_address(lambda: coordinator.pid)
    try:
        context = context_of(settings)
        url = f"{'http' if context is None else 'https'}://{admin}"
        write_private(folder.admin_url_file, url.encode())
        token = token_in(folder)
        if not token or not console.is_terminal:
            console.say(
                f"the job's page: {url}/ (`paramfleet page` prints a link that opens it)"
            )
            return
        operator = Operator(url=url, token=token, tls=context, timeout_s=_TIMEOUT_S)
        code = (await asyncio.to_thread(operator.post, "codes"))["code"]
    except (FleetError, OSError) as error:
        console.say(f"the job's page can't be shown: {error}")
        return
    console.say(
        f"the job's page, once and within ten minutes: {url}/#code={code} "
        "(`paramfleet page` prints another link)"
    )
