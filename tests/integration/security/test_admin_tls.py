"""Admin pages under TLS: who sees what, with real certificates and tokens."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from paramfleet_shared.net.access import gate_of, requires
from paramfleet_shared.net.admin import AdminLimits, AdminServer
from paramfleet_shared.net.tls import MEMBER_ROLES, tls_of
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_worker.app.commands.tokens import tokens


@requires("admin")
async def pause(_request: web.Request) -> web.Response:
    return web.Response(text="paused")


@contextlib.asynccontextmanager
async def serving(
    settings: JobSettings, *, limits: AdminLimits | None = None
) -> AsyncIterator[str]:
    tls = tls_of(settings, "coordinator")
    pages = tls and tls.accepts(*MEMBER_ROLES, protocol="http/1.1")
    server = AdminServer(
        status=dict,
        ready=lambda: (True, ""),
        metrics=MetricRegistry(),
        routes=[web.post("/pause", pause)],
        gate=gate_of(settings, pages),
        tls=pages,
        limits=limits or AdminLimits(),
    )
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    finally:
        await server.close()


async def ask(
    url: str, path: str, *, context: ssl.SSLContext | bool = True, token: str = ""
) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    method = "POST" if path == "/pause" else "GET"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as client,
        client.request(method, url + path, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


def settings_of(certificates: Any, tokens_file: str = "") -> JobSettings:
    files = certificates.issue("coordinator")
    folder = str(files.ca.parent)
    return JobSettings(job="flights", tls_dir=folder, tokens_file=tokens_file)


def shown(certificates: Any, role: str, **options: Any) -> ssl.SSLContext:
    """Return the context of a caller who checks the host's name, too, as curl does."""
    files = certificates.issue(role, **options)
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    return context


@pytest.mark.parametrize(
    ("role", "status", "pause_status"),
    [
        ("worker", 200, 403),
        ("pserver", 200, 403),
        ("coordinator", 200, 403),
        ("admin", 200, 200),
    ],
)
async def test_a_certificate_opens_what_its_role_may(
    certificates: Any, role: str, status: int, pause_status: int
) -> None:
    async with serving(settings_of(certificates)) as url:
        context = shown(certificates, role)

        assert (await ask(url, "/status", context=context))[0] == status
        assert (await ask(url, "/pause", context=context))[0] == pause_status


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"age_days": 60}, "expired"), ({"job": "clicks"}, "a certificate of job clicks")],
)
async def test_a_wrong_certificate_sees_health_alone_and_learns_why(
    certificates: Any, options: dict[str, Any], reason: str
) -> None:
    async with serving(settings_of(certificates)) as url:
        context = shown(certificates, "admin", **options)

        assert (await ask(url, "/healthz", context=context))[0] == 200
        status, text = await ask(url, "/status", context=context)

    assert status == 401
    assert reason in text


async def test_a_caller_without_certificate_sees_health_alone(certificates: Any) -> None:
    async with serving(settings_of(certificates)) as url:
        bare = ssl.create_default_context(cafile=str(certificates.folder / "ours" / "ca.crt"))

        assert (await ask(url, "/healthz", context=bare))[0] == 200
        assert (await ask(url, "/status", context=bare))[0] == 401
        assert (await ask(url, "/pause", context=bare))[0] == 401


async def test_a_token_stands_in_for_a_certificate(certificates: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    made = {
        role: CliRunner().invoke(tokens, ["new", "--file", str(path), "--role", role]).output
        for role in ("admin", "worker", "read")
    }
    async with serving(settings_of(certificates, tokens_file=str(path))) as url:
        bare = ssl.create_default_context(cafile=str(certificates.folder / "ours" / "ca.crt"))
        statuses = {
            role: (await ask(url, "/pause", context=bare, token=token.strip()))[0]
            for role, token in made.items()
        }

    assert statuses == {"admin": 200, "worker": 403, "read": 403}


async def test_a_revoked_token_opens_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    runner = CliRunner()
    made = runner.invoke(tokens, ["new", "--file", str(path), "--role", "admin"]).output.strip()
    async with serving(JobSettings(tokens_file=str(path))) as url:
        assert (await ask(url, "/pause", token=made))[0] == 200

        runner.invoke(tokens, ["revoke", "--file", str(path), "admin"])

        assert (await ask(url, "/pause", token=made))[0] == 401


async def test_strangers_who_begin_no_handshake_give_way(certificates: Any) -> None:
    limits = AdminLimits(max_connections_per_peer=4)
    async with (
        serving(settings_of(certificates), limits=limits) as url,
        contextlib.AsyncExitStack() as stack,
    ):
        port = int(url.rpartition(":")[2])
        silent = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            silent.append(reader)

        context = shown(certificates, "admin")
        assert (await ask(url, "/status", context=context))[0] == 200

        async with asyncio.timeout(LATE_S):
            with contextlib.suppress(ConnectionError):
                assert await silent[0].read() == b""
