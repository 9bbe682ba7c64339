"""The admin address, asked over real HTTP."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from paramfleet_shared.net.access import Gate, requires
from paramfleet_shared.net.admin import AdminPortInUseError, AdminServer
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry, finite


class Shop:
    """What a made-up process says of itself."""

    ready = (False, "loading")

    def __init__(self) -> None:
        self.metrics = MetricRegistry()
        self.metrics.gauge("rows", "Rows.").set(3)
        self.server = AdminServer(
            status=lambda: {"role": "pserver", "index": 1},
            ready=lambda: self.ready,
            metrics=self.metrics,
            config={"port": {"value": 1, "origin": "default"}},
            routes=[web.get("/extra", self.extra)],
            gate=Gate(open_reading=True),
        )

    @requires("open")
    async def extra(self, _request: web.Request) -> web.Response:
        return web.Response(text="more")


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    shop = Shop()
    yield shop
    await shop.server.close()


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/healthz", 200, '{"ok": true}'),
        ("/readyz", 503, '{"ready": false, "reason": "loading"}'),
        ("/status", 200, '{"role": "pserver", "index": 1}'),
        ("/config", 200, '{"port": {"value": 1, "origin": "default"}}'),
        ("/extra", 200, "more"),
        ("/nothing", 404, "404: Not Found"),
    ],
)
async def test_each_path_answers(shop: Shop, path: str, status: int, text: str) -> None:
    port = await shop.server.start("127.0.0.1", 0)

    assert await get(port, path) == (status, text)


async def test_metrics_are_in_the_prometheus_format(shop: Shop) -> None:
    port = await shop.server.start("127.0.0.1", 0)

    status, text = await get(port, "/metrics")

    assert status == 200
    assert "paramfleet_rows 3.0" in text


async def test_ready_is_asked_anew_each_time(shop: Shop) -> None:
    port = await shop.server.start("127.0.0.1", 0)
    shop.ready = (True, "serving")

    assert (await get(port, "/readyz"))[0] == 200


async def test_a_port_in_use_is_named(shop: Shop) -> None:
    port = await shop.server.start("127.0.0.1", 0)
    second = Shop().server

    with pytest.raises(AdminPortInUseError, match=f"127.0.0.1 port {port}"):
        await second.start("127.0.0.1", port)


async def test_close_may_be_called_again(shop: Shop) -> None:
    await shop.server.start("127.0.0.1", 0)

    await shop.server.close()
    await shop.server.close()


def test_a_loss_that_is_not_a_number_is_still_json() -> None:
    status = {"members": [{"loss": float("nan")}], "best": (float("inf"), 0.5), "n": 1}

    assert finite(status) == {"members": [{"loss": "nan"}], "best": ["inf", 0.5], "n": 1}
