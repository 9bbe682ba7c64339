"""Requests to a running job's coordinator over its admin API: reads and commands."""

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramfleet_shared.discovery.errors import NoCoordinatorError
from paramfleet_shared.discovery.redis.store import store_of
from paramfleet_shared.discovery.registry import CoordinatorRecord, Registry
from paramfleet_shared.errors import ContractError, UnavailableError
from paramfleet_shared.net.tls import CertificateFilesError, Tls, files_of
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.core.topology import Host
from paramfleet_worker.process.addresses import hosts_of_this_machine
from paramfleet_worker.process.http_request import HttpRequest, NoAddressError, send

if TYPE_CHECKING:
    from paramfleet_worker.app.finding import Found

__all__ = [
    "MAX_ANSWER_BYTES",
    "AdminAnswerError",
    "AdminRefusedError",
    "AdminUnreachableError",
    "Operator",
    "context_of",
    "operator_of",
    "read_audit",
    "read_token",
    "reading",
]

_TIMEOUT_S = 10.0

MAX_ANSWER_BYTES = 16 << 20
"""Of an answer: the status of a job of thousands of processes has a few MiB."""

_OF_ANOTHER_SHAPE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What comes of reading an answer that isn't a coordinator's."""

_SAY_WHO = (
    "; give a token with --token-file or PARAMFLEET_SECRET_FILE, or be the user who "
    "launched the job, on its machine"
)


class AdminRefusedError(ContractError):
    """The coordinator refused what was asked."""

    code = "contract.admin_refused"
    url: str
    status: int
    reason: str
    sentence = "{reason} ({url} answered {status})"


class AdminUnreachableError(UnavailableError):
    """No process answers at the coordinator's admin address."""

    code = "unavailable.admin"
    url: str
    reason: str
    sentence = (
        "no answer from {url}: {reason}; if the job has ended, this address does not answer "
        "any more"
    )


class AdminAnswerError(ContractError):
    """What answers at an admin address isn't this job's coordinator, or not of this version."""

    code = "contract.admin_answer"
    url: str
    reason: str
    sentence = (
        "the answer of {url} isn't a coordinator's: {reason}; look at the address: another "
        "program may listen there, or the job may run with another version of paramfleet"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """A client of one coordinator's admin API."""

    url: str
    """``http://host:port`` or ``https://host:port``."""

    token: str = ""
    """Identifies the caller; empty sends none."""

    is_own: bool = False
    """Whether the token is one that a launch of this user made: no process of another user of
    this machine is shown it."""

    tls: ssl.SSLContext | None = None
    """Which authorities are trusted, for https; None trusts this machine's authorities."""

    timeout_s: float = _TIMEOUT_S
    """Seconds until an answer must be whole."""

    def get(self, path: str) -> Any:
        """Return what ``/api/v1/<path>`` answers.

        Raises:
            AdminRefusedError: if the coordinator refuses.
            AdminUnreachableError: if it doesn't answer in time.
            AdminAnswerError: if the answer isn't JSON, or too long.
        """
        return self._ask(f"api/v1/{path}", None)

    def page(self, name: str) -> Any:
        """Return what a page of every process answers, as ``config``; raises as ``get``."""
        return self._ask(name, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Do what ``/api/v1/<path>`` does; raises as ``get``."""
        return self._ask(f"api/v1/{path}", json.dumps(body or {}).encode())

    def _ask(self, path: str, body: bytes | None) -> Any:
        url = f"{self.url.rstrip('/')}/{path}"
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = HttpRequest(
            url=url,
            body=body,
            headers=headers,
            tls=self.tls,
            timeout_s=self.timeout_s,
            only_own=self.is_own,
            max_bytes=MAX_ANSWER_BYTES,
        )
        try:
            answer = send(request, SystemClock().monotonic)
        except (OSError, IncompleteRead, NoAddressError) as error:
            reason = str(error) or type(error).__name__
            raise AdminUnreachableError(url=url, reason=reason) from error
        except (HTTPException, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise AdminAnswerError(url=url, reason=reason) from error
        if answer.status >= 400:
            reason = _reason_of(answer.body)
            if answer.status in {401, 403} and not self.token:
                reason += _SAY_WHO
            raise AdminRefusedError(url=url, status=answer.status, reason=reason)
        if answer.status != 200:
            raise AdminAnswerError(url=url, reason=f"its status is {answer.status}")
        with reading(url):
            return json.loads(answer.body)


@contextlib.contextmanager
def reading(url: str) -> Iterator[None]:
    """Say of an answer that can't be read as a coordinator's that it isn't one.

    Args:
        url: Where it came from.

    Raises:
        AdminAnswerError: instead of the error that came of its shape.
        UnicodeEncodeError: if the terminal can't show it.
    """
    try:
        yield
    except UnicodeEncodeError:  # of the terminal
        raise
    except _OF_ANOTHER_SHAPE as error:
        reason = f"it can't be read as one ({type(error).__name__}: {error})"
        raise AdminAnswerError(url=url, reason=reason) from error


def context_of(settings: JobSettings) -> ssl.SSLContext | None:
    """Return how a job with certificates is asked: as its admin, if that one's is there.

    Returns:
        None for a job that has none.

    Raises:
        CertificateFilesError: if they can't be used.
    """
    files = files_of(settings, "admin")
    if files is None:
        return None
    if files.cert.exists():
        return Tls(files, job=settings.job).context(is_server=False, protocol="http/1.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a certificate stands for a role, not for a host
    try:
        context.load_verify_locations(files.ca)
    except OSError as error:
        raise CertificateFilesError(files=str(files.ca), reason=str(error)) from error
    return context


def operator_of(
    found: "Found",
    *,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> Operator:
    """Return a client of a job's coordinator.

    Args:
        found: The job.
        token: Identifies the caller; by default the job's own.
        tls: Which authorities are trusted; by default the job's, if it has certificates.
        timeout_s: Seconds until an answer must be whole.

    Raises:
        CertificateFilesError: if the job's certificates can't be used.
        NoRedisError: if the registry doesn't answer.
        NoCoordinatorError: if the job has no coordinator now.
    """
    context = context_of(found.settings) if tls is None else tls
    return Operator(
        url=_url_of(found, scheme="http" if context is None else "https"),
        token=token or found.token,
        is_own=found.folder is not None and not token,
        tls=context,
        timeout_s=timeout_s,
    )


def _url_of(found: "Found", *, scheme: str) -> str:
    """Return where a job's coordinator has its admin address.

    Of a job that was launched here the registry may still name a coordinator that has died:
    its port may be anybody's, who would get the token.

    Raises:
        NoRedisError: if the registry doesn't answer.
        NoCoordinatorError: if the job has no coordinator now.
    """
    if found.url:
        return found.url
    settings, is_ours = found.settings, found.folder is not None

    async def find() -> str:
        store = store_of(settings, clock=SystemClock(), timeout_s=5.0)
        try:
            coordinator = await Registry(store, job=settings.job).find_coordinator()
        finally:
            await store.close()
        is_there = coordinator is not None and bool(coordinator.admin)
        if coordinator is None or not is_there or (is_ours and _is_dead(coordinator)):
            raise NoCoordinatorError(job=settings.job, waited_s=0.0)
        return f"{scheme}://{coordinator.admin}"

    return asyncio.run(find())


def _is_dead(coordinator: CoordinatorRecord) -> bool:
    """Return whether a coordinator ran on this machine, and is no more."""
    if not hosts_of_this_machine([Host(coordinator.host)], own=None):
        return False
    try:
        os.kill(coordinator.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return False


def read_audit(settings: JobSettings) -> list[dict[str, Any]]:
    """Return the changes by operators, which the registry keeps after the job's end.

    Raises:
        NoRedisError: if the registry doesn't answer.
    """

    async def read() -> list[dict[str, Any]]:
        store = store_of(settings, clock=SystemClock(), timeout_s=5.0)
        try:
            return await Registry(store, job=settings.job).read_audit()
        finally:
            await store.close()

    return asyncio.run(read())


def read_token(token: str | None, file: Path | None) -> str:
    """Return the token that was given, or that a file holds; empty without either."""
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    return token or ""


def _reason_of(body: bytes) -> str:
    """Return the sentence in an error's answer."""
    try:
        said = json.loads(body)["error"]["message"]
    except (RecursionError, ValueError, KeyError, TypeError):
        return body[:800].decode(errors="replace")[:200] or "refused"
    return str(said)
