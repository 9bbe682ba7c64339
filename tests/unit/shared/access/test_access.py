"""Whom the gate lets pass, asked over real HTTP."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from paramfleet_shared.access import (
    NOBODY,
    Gate,
    Identity,
    UnmarkedRouteError,
    identity_of,
    requires,
)
from paramfleet_shared.admin import AdminServer
from paramfleet_shared.telemetry import MetricRegistry

ROLES = ("read", "worker", "pserver", "admin")


@requires("read")
async def look(request: web.Request) -> web.Response:
    return web.Response(text=identity_of(request).name)


@requires("worker")
async def work(request: web.Request) -> web.Response:
    return web.Response(text=identity_of(request).name)


@requires("pserver")
async def serve(request: web.Request) -> web.Response:
    return web.Response(text=identity_of(request).name)


@requires("admin")
async def change(request: web.Request) -> web.Response:
    return web.Response(text=identity_of(request).name)


async def unmarked(_request: web.Request) -> web.Response:
    return web.Response()


def by_token(token: str) -> Identity | None:
    """The token ``<role>-token`` is that role's."""
    role = token.removesuffix("-token")
    known = role in ROLES and token != role
    return Identity(roles=frozenset({role}), name=f"{role} 7") if known else None


def server_of(*routes: web.RouteDef, gate: Gate | None = None) -> AdminServer:
    return AdminServer(
        status=dict,
        ready=lambda: (True, "serving"),
        metrics=MetricRegistry(),
        routes=routes,
        gate=gate,
    )


@contextlib.asynccontextmanager
async def serving(gate: Gate | None) -> AsyncIterator[str]:
    server = server_of(
        web.get("/look", look),
        web.get("/work", work),
        web.get("/serve", serve),
        web.post("/change", change),
        gate=gate,
    )
    try:
        yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    finally:
        await server.close()


async def ask(
    url: str, path: str, token: str | None = None, **headers: str
) -> tuple[int, dict[str, Any] | str]:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    method = "POST" if path == "/change" else "GET"
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, url + path, headers=headers) as answer,
    ):
        is_json = answer.content_type == "application/json"
        return answer.status, await answer.json() if is_json else await answer.text()


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("/look", {"read", "worker", "pserver", "admin"}),
        ("/status", {"read", "worker", "pserver", "admin"}),
        ("/metrics", {"read", "worker", "pserver", "admin"}),
        ("/config", {"read", "worker", "pserver", "admin"}),
        ("/work", {"worker", "admin"}),
        ("/serve", {"pserver", "admin"}),
        ("/change", {"admin"}),
    ],
)
async def test_a_route_serves_the_roles_it_is_for_and_no_other(
    path: str, served: set[str]
) -> None:
    async with serving(Gate(by_token=by_token)) as url:
        answers = {role: (await ask(url, path, f"{role}-token"))[0] for role in ROLES}

    assert answers == {role: 200 if role in served else 403 for role in ROLES}


@pytest.mark.parametrize("token", [None, "", "wrong", "x" * 4000, "admin-toke"])
async def test_a_caller_without_a_valid_token_is_refused(token: str | None) -> None:
    async with serving(Gate(by_token=by_token)) as url:
        status, answer = await ask(url, "/change", token)

    assert status == 401
    assert isinstance(answer, dict)
    assert answer["error"]["needed"] == "admin"
    assert "wrong" not in str(answer)


async def test_health_is_open_to_all() -> None:
    async with serving(Gate(by_token=by_token)) as url:
        assert await ask(url, "/healthz") == (200, {"ok": True})
        assert (await ask(url, "/readyz"))[0] == 200


async def test_a_page_that_does_not_exist_is_not_found_rather_than_refused() -> None:
    async with serving(Gate(by_token=by_token)) as url:
        assert (await ask(url, "/nothing"))[0] == 404


async def test_a_handler_learns_who_asked() -> None:
    async with serving(Gate(by_token=by_token)) as url:
        assert await ask(url, "/change", "admin-token") == (200, "admin 7")


async def test_without_tokens_callers_on_this_machine_may_do_all() -> None:
    async with serving(None) as url:
        assert await ask(url, "/change") == (200, NOBODY.name)
        assert await ask(url, "/look") == (200, NOBODY.name)


async def test_a_page_of_another_origin_may_change_nothing() -> None:
    async with serving(None) as url:
        assert (await ask(url, "/change", Origin="http://evil.example"))[0] == 403
        assert (await ask(url, "/change", Origin=url))[0] == 200


async def test_a_refusal_is_logged_with_peer_and_reason_but_no_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Gate(by_token=by_token)) as url:
        await ask(url, "/change", "worker-token")

    (record,) = [each for each in caplog.records if each.message == "access.refused"]
    facts = vars(record)
    assert (facts["peer"], facts["needed"]) == ("127.0.0.1", "admin")
    assert "worker" in facts["reason"]
    assert "worker-token" not in str(facts)


def test_a_route_that_does_not_say_whom_it_serves_keeps_the_server_from_starting() -> None:
    with pytest.raises(UnmarkedRouteError, match="/extra has no access"):
        server_of(web.get("/extra", unmarked))
