"""aiohttp over HTTP/1.1: one connection for each call in flight."""

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from wires.cases import CALL_TIMEOUT_S, CASES, Ask, Payloads, Tls, check

__all__ = ["connect", "serve"]

_MAX_BODY_BYTES = 1 << 30
_MAX_CONNECTIONS = 128


async def serve(payloads: Payloads, tls: Tls | None) -> int:
    """Serve until the process ends; return the port."""
    assert tls is None, "measured without"
    answers = {case: payloads.answers[case].tobytes() for case in CASES}

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answers[request.match_info["case"]])

    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_post("/{case}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port: int = runner.addresses[0][1]
    return port


async def connect(payloads: Payloads, port: int, tls: Tls | None) -> Ask:
    """Return how to ask the server."""
    assert tls is None, "measured without"
    session = ClientSession(
        connector=TCPConnector(limit=_MAX_CONNECTIONS),
        timeout=ClientTimeout(total=CALL_TIMEOUT_S),
    )
    requests = {case: payload.tobytes() for case, payload in payloads.requests.items()}

    async def ask(case: str) -> None:
        url = f"http://127.0.0.1:{port}/{case}"
        async with session.post(url, data=requests[case]) as answer:
            check(await answer.read(), case)

    return ask
