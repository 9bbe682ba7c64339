"""Whom the gate lets pass, asked over real HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from paramfleet_shared.net.access import (
    GATE,
    NOBODY,
    Gate,
    Identity,
    UnmarkedRouteError,
    gate_of,
    identity_of,
    requires,
)
from paramfleet_shared.net.admin import AdminServer
from paramfleet_shared.net.hosts import AllowedHosts
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.sessions import CODE_LIFE_S, SESSION_LIFE_S
from paramfleet_shared.settings.config import JobSettings, SettingError
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry
from paramfleet_shared.testing.clock import FakeClock

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


@pytest.mark.parametrize("path", ["/status", "/metrics", "/config", "/look", "/change"])
async def test_without_tokens_nobody_reads_or_changes_anything_and_is_told_how_to(
    path: str,
) -> None:
    async with serving(None) as url:
        status, answer = await ask(url, path)
        health = await ask(url, "/healthz")

    assert status == 403
    assert isinstance(answer, dict)
    assert "paramfleet tokens new --role admin" in answer["error"]["message"]
    assert health == (200, {"ok": True})


async def test_reading_can_be_opened_but_not_changing() -> None:
    async with serving(Gate(open_reading=True)) as url:
        assert await ask(url, "/look") == (200, NOBODY.name)
        assert (await ask(url, "/change"))[0] == 403
    async with serving(Gate(by_token=by_token, open_reading=True)) as url:
        assert (await ask(url, "/metrics"))[0] == 200
        assert (await ask(url, "/change"))[0] == 401
        assert await ask(url, "/look", "read-token") == (200, "read 7")


async def test_a_page_of_another_origin_may_change_nothing() -> None:
    async with serving(Gate(by_token=by_token)) as url:
        evil = await ask(url, "/change", "admin-token", Origin="http://evil.example")
        assert evil[0] == 403
        assert (await ask(url, "/change", "admin-token", Origin=url))[0] == 200


@pytest.mark.parametrize("path", ["/change", "/look", "/healthz", "/nothing"])
@pytest.mark.parametrize("host", ["evil:7301", "evil.example", "0.0.0.0:{port}", "192.0.2.7"])
async def test_a_page_whose_name_was_made_to_lead_here_is_answered_nothing(
    path: str, host: str
) -> None:
    async with serving(Gate(by_token=by_token)) as url:
        asked = host.format(port=url.rpartition(":")[2])
        status, answer = await ask(
            url, path, "admin-token", Host=asked, Origin=f"http://{asked}"
        )

    assert status == 421
    assert isinstance(answer, dict)
    assert "PARAMFLEET_ADMIN_HOSTS" in answer["error"]["message"]


@pytest.mark.parametrize("head", [b"", b"Host: localhost\r\nHost: localhost\r\n"])
async def test_a_request_without_one_host_is_refused(head: bytes) -> None:
    async with serving(Gate(by_token=by_token)) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(
            b"GET /healthz HTTP/1.1\r\n" + head + b"Connection: close\r\n\r\n",
        )
        answer = await asyncio.wait_for(reader.read(), 5.0)
        writer.close()

    assert answer.split()[1] in {b"400", b"421"}


async def test_names_that_were_given_and_addresses_of_this_machine_may_be_asked() -> None:
    hosts = AllowedHosts(["trainer-7"], "job.example, .jobs.example")
    async with serving(Gate(by_token=by_token, hosts=hosts)) as url:
        for host in ("trainer-7", "JOB.example.:99", "a.jobs.example", "localhost", "[::1]:7"):
            assert (await ask(url, "/look", "read-token", Host=host))[0] == 200, host
        for host in ("jobs.example", "example", "job.example.evil", "localhost:99999", "", "["):
            assert (await ask(url, "/look", "read-token", Host=host))[0] in {400, 421}, host


def test_the_address_at_which_a_request_came_is_this_machines() -> None:
    hosts = AllowedHosts(["10.0.0.5", "0.0.0.0"])

    assert hosts.refusal(["192.0.2.7:80"], local="192.0.2.7") == ""
    assert hosts.refusal(["[fe80::1]:80"], local="fe80::1%eth0") == ""
    assert hosts.refusal(["192.0.2.7"], local="::ffff:192.0.2.7") == ""
    assert hosts.refusal(["10.0.0.5:80"], local="") == ""
    assert hosts.refusal(["192.0.2.7:80"], local="192.0.2.8")
    assert hosts.refusal(["0.0.0.0:80"], local="0.0.0.0")


@pytest.mark.parametrize("given", ["*", "http://a", "a:80", "a b", ".", "a,;b"])
def test_what_can_not_be_a_host_is_refused_at_the_start(given: str) -> None:
    with pytest.raises(SettingError, match="admin_hosts"):
        AllowedHosts([], given)


async def test_wrong_tokens_are_limited_but_the_right_one_is_let_in_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Gate(by_token=by_token)) as url:
        statuses = [(await ask(url, "/look", f"guess {n}"))[0] for n in range(30)]
        right = await ask(url, "/look", "read-token")

    assert statuses == [401] * 10 + [429] * 20
    assert right == (200, "read 7")
    assert len([each for each in caplog.records if each.message == "access.refused"]) == 10


@requires("open")
async def log_in(request: web.Request) -> web.StreamResponse:
    code, token = request.query.get("code", ""), request.query.get("token", "")
    return request.config_dict[GATE].log_in(request, code=code, token=token)


@contextlib.asynccontextmanager
async def in_browser(gate: Gate) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """Yield a client that keeps cookies, as browsers do, and the address."""
    server = server_of(
        web.get("/look", look), web.post("/change", change), web.post("/login", log_in),
        gate=gate,
    )  # fmt: skip
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    jar = aiohttp.CookieJar(unsafe=True)  # which keeps those of addresses, too
    try:
        async with aiohttp.ClientSession(url, cookie_jar=jar) as client:
            yield client, url
    finally:
        await server.close()


async def test_a_code_lets_a_browser_in_once_with_a_cookie_that_scripts_do_not_see() -> None:
    gate = Gate(by_token=by_token)
    code = gate.make_code(Identity(roles=frozenset({"admin"}), name="token ada"))
    async with in_browser(gate) as (client, url):
        async with client.post("/login", params={"code": code}) as answer:
            said, (cookie,) = await answer.json(), answer.headers.getall("Set-Cookie")
        key = {"Paramfleet-Key": said["key"]}
        async with client.post("/change", headers=key) as answer:
            changed = (answer.status, await answer.text())
        async with client.post("/login", params={"code": code}) as answer:
            again = answer.status

    assert changed == (200, "token ada, in a browser")
    assert again == 401
    name, _, attributes = cookie.partition("=")
    assert name == f"paramfleet-{url.rpartition(':')[2]}"
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes.split("; "))
    assert "Domain" not in attributes
    assert code not in cookie
    assert said["key"] not in cookie


async def test_a_cookie_alone_which_every_port_of_the_host_is_sent_opens_nothing() -> None:
    gate = Gate(by_token=by_token)
    async with in_browser(gate) as (client, _):
        await client.post("/login", params={"token": "admin-token"})
        async with client.post("/change") as answer:
            without = answer.status
        async with client.post("/change", headers={"Paramfleet-Key": "guess"}) as answer:
            wrong = answer.status

    assert (without, wrong) == (401, 401)


async def test_codes_and_sessions_end() -> None:
    clock = FakeClock()
    gate = Gate(by_token=by_token, clock=clock, job="flights")
    late = gate.make_code(Identity(roles=frozenset({"admin"}), name="token ada"))
    await clock.advance(CODE_LIFE_S)
    async with in_browser(gate) as (client, _):
        async with client.post("/login", params={"code": late}) as answer:
            assert answer.status == 401
            refusal = (await answer.json())["error"]["message"]
            assert "`paramfleet page --job flights` makes another" in refusal
        async with client.post("/login", params={"token": "read-token"}) as answer:
            key = {"Paramfleet-Key": (await answer.json())["key"]}
        async with client.get("/look", headers=key) as answer:
            assert answer.status == 200
        await clock.advance(SESSION_LIFE_S)
        async with client.get("/look", headers=key) as answer:
            assert answer.status == 401


async def test_a_session_ends_with_the_token_that_began_it() -> None:
    valid = [True]
    ada = Identity(roles=frozenset({"read"}), name="token ada", is_valid=lambda: valid[0])
    gate = Gate(by_token=by_token)
    async with in_browser(gate) as (client, _):
        async with client.post("/login", params={"code": gate.make_code(ada)}) as answer:
            key = {"Paramfleet-Key": (await answer.json())["key"]}
        async with client.get("/look", headers=key) as answer:
            assert answer.status == 200
        valid[0] = False
        async with client.get("/look", headers=key) as answer:
            assert answer.status == 401


async def test_who_has_the_jobs_secret_has_its_tokens(tmp_path: Path) -> None:
    settings = JobSettings(job="flights", secret="s" * 43)
    secret = JobSecret(settings.secret, "flights")
    async with serving(gate_of(settings, None)) as url:
        assert (await ask(url, "/change", secret.token("admin")))[0] == 200
        assert (await ask(url, "/look", secret.token("read")))[0] == 200
        assert (await ask(url, "/change", secret.token("read")))[0] == 403
        assert (await ask(url, "/change", JobSecret("t" * 43, "flights").token("admin")))[
            0
        ] == 401
        other = JobSecret(settings.secret, "clicks").token("admin")
        assert (await ask(url, "/change", other))[0] == 401

    (tmp_path / "tokens").write_text("")
    with_file = replace(settings, tokens_file=str(tmp_path / "tokens"))
    async with serving(gate_of(with_file, None)) as url:
        assert (await ask(url, "/change", secret.token("admin")))[0] == 401


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


async def test_refusals_are_logged_some_at_a_time_and_those_left_out_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    async with serving(Gate(by_token=by_token, clock=clock)) as url:
        statuses = {(await ask(url, "/change"))[0] for _ in range(30)}
        before = [each for each in caplog.records if each.message == "access.refused"]
        clock.jump(60)
        await ask(url, "/look")

    *_, last = [each for each in caplog.records if each.message == "access.refused"]
    assert statuses == {401}
    assert len(before) == 10
    assert not any(hasattr(each, "left_out") for each in before)
    assert vars(last)["left_out"] == 20


def test_a_route_that_does_not_say_whom_it_serves_keeps_the_server_from_starting() -> None:
    with pytest.raises(UnmarkedRouteError, match="/extra has no access"):
        server_of(web.get("/extra", unmarked))
