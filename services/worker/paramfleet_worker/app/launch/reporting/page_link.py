"""Telling the person who launches a job where its page is, and opening it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.job_folder import write_private
from paramfleet_shared.net.secret import JobSecret
from paramfleet_worker.app.launch.preparing import PreparedLaunch
from paramfleet_worker.app.operating import Operator, context_of, reading
from paramfleet_worker.process.admin_token import token_in
from paramfleet_worker.process.terminal.console import Console
from paramfleet_worker.storage import JobRecords

__all__ = ["HasPid", "show_page"]

_TIMEOUT_S = 2.0


class HasPid(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its id; 0 until it runs."""
        ...

    @property
    def ended(self) -> bool:
        """Whether its end was seen."""
        ...


async def show_page(
    prepared: PreparedLaunch,
    records: JobRecords,
    console: Console,
    coordinator: HasPid,
    *,
    is_over: Callable[[], bool],
) -> Operator | None:
    """Keep the coordinator's admin address in the job's folder once it serves, and show it.

    In a terminal with a code that opens the page once; not elsewhere, because what is
    written there may be kept, and read by others.

    Args:
        prepared: What is started.
        records: Of the job.
        console: Where it is shown.
        coordinator: The process whose page it is.
        is_over: Whether the job has ended by now: then nothing is shown, and no code is made.

    Returns:
        Who may ask the coordinator how the job is; None if it can't be asked, or has ended.
    """
    admin = await records.admin_address(lambda: coordinator.pid, lambda: coordinator.ended)
    if admin is None:
        return None

    def is_late() -> bool:  # its port may be anybody's once it has ended
        return is_over() or coordinator.ended

    try:
        context = context_of(prepared.job)
        url = f"{'http' if context is None else 'https'}://{admin}"
        write_private(prepared.folder.admin_url_file, url.encode())
        token = token_in(prepared.folder)
        asking = token or _token_of_secret(prepared)
        operator = Operator(
            url=url, token=asking, is_own=True, tls=context, timeout_s=_TIMEOUT_S
        )
        if is_late():
            return operator
        if prepared.opens_page:
            _open(f"{url}/{await _code(operator)}" if token else f"{url}/", console)
        command = f"`paramfleet page --job {prepared.job.job}`"
        plain = f"the job's page: {url}/ ({command} prints a link that opens it)"
        if not token or not console.is_terminal:
            console.tell(plain)
            return operator
        code = "" if is_late() else await _code(operator)
        if is_late():
            return operator
    except (FleetError, OSError) as error:
        if not is_late():  # else why the job has ended is what matters
            console.say(f"the job's page can't be shown: {error}")
        return None
    console.tell(
        f"the job's page, once and within ten minutes: {url}/{code}"
        f"  ({command} prints another link)",
        kept=plain,
    )
    return operator


async def _code(operator: Operator) -> str:
    """Return the end of a link that opens the page once.

    Raises:
        FleetError: if the coordinator doesn't answer, or what answers isn't one.
    """
    answer = await asyncio.to_thread(operator.post, "codes")
    with reading(operator.url):
        return f"#code={answer['code']}"


def _token_of_secret(prepared: PreparedLaunch) -> str:
    """Return the token that the secret of a job on several machines gives its operators."""
    secret = prepared.job.secret
    return JobSecret(secret, prepared.job.job).token("admin") if secret else ""


def _open(url: str, console: Console) -> None:
    """Open a page in the user's browser; a browser in the terminal may take its time."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        import webbrowser  # noqa: PLC0415 -- slow

        if not webbrowser.open(url) and loop.is_running():
            loop.call_soon_threadsafe(
                console.say, "no browser was found to open the job's page: see its address"
            )

    threading.Thread(target=run, name="browser", daemon=True).start()
