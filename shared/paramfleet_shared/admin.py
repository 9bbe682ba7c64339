"""The admin address of a process: health, status, metrics and settings over HTTP/1.1."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from paramfleet_shared.access import GATE, Gate, require_marks, requires
from paramfleet_shared.errors import ContractError
from paramfleet_shared.rpc.doorway import TlsDoorway
from paramfleet_shared.telemetry import MetricRegistry, finite
from paramfleet_shared.tls import TlsEnd

__all__ = ["AdminPortInUseError", "AdminServer"]

_STOP_TIMEOUT_S = 1.0
"""Seconds that open admin connections get at the end."""


class AdminPortInUseError(ContractError):
    """The admin address can't be listened on."""

    code = "contract.admin_port_in_use"

    def __init__(self, *, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"can't listen on {host} port {port}, the admin address: {reason}",
            host=host,
            port=port,
            reason=reason,
        )


class AdminServer:
    """Serves ``/healthz /readyz /status /metrics /config`` and a role's own routes.

    Health is open; the rest is for whoever the gate lets read.

    Args:
        status: Returns what ``/status`` answers, in plain values.
        ready: Returns whether the process serves, and the reason if it doesn't.
        metrics: What ``/metrics`` renders.
        config: What ``/config`` answers: ``Resolved.shown()``, with secrets hidden.
        routes: More aiohttp routes, whose handlers are marked with ``@requires``.
        state: What those handlers find in their application.
        gate: Who may ask; without one health alone is told.
        tls: Serve TLS. Callers without a certificate are served what the gate lets them.

    Raises:
        UnmarkedRouteError: if a route doesn't say whom it serves.
    """

    def __init__(  # noqa: PLR0913 (all by keyword)
        self,
        *,
        status: Callable[[], Mapping[str, Any]],
        ready: Callable[[], tuple[bool, str]],
        metrics: MetricRegistry,
        config: Mapping[str, Any] | None = None,
        routes: Sequence[web.RouteDef] = (),
        state: Mapping[web.AppKey[Any], Any] | None = None,
        gate: Gate | None = None,
        tls: TlsEnd | None = None,
    ) -> None:
        self._status = status
        self._ready = ready
        self._metrics = metrics
        self._config = dict(config or {})
        self._tls = tls
        self._doorway: TlsDoorway | None = None
        gate = gate or Gate()
        app = web.Application(middlewares=[gate.middleware])
        app[GATE] = gate
        for key, value in (state or {}).items():
            app[key] = value
        app.add_routes(
            [
                web.get("/healthz", self._answer_health),
                web.get("/readyz", self._answer_ready),
                web.get("/status", self._answer_status),
                web.get("/metrics", self._answer_metrics),
                web.get("/config", self._answer_config),
                *routes,
            ]
        )
        require_marks(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_TIMEOUT_S)

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 picks a free one.

        Returns:
            The port.

        Raises:
            AdminPortInUseError: if the address can't be listened on.
        """
        await self._runner.setup()
        try:
            return await self._listen(host, port)
        except OSError as error:
            await self._runner.cleanup()
            raise AdminPortInUseError(host=host, port=port, reason=str(error)) from error

    async def close(self) -> None:
        """Stop listening; may be called again."""
        if self._doorway is not None:
            await self._doorway.wait_closed()
        await self._runner.cleanup()

    async def _listen(self, host: str, port: int) -> int:
        if self._tls is not None:
            server = self._runner.server
            assert server is not None, "set up"
            self._doorway = TlsDoorway(server, self._tls, server="the admin address")
            return await self._doorway.open(host, port)
        await web.TCPSite(self._runner, host, port).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    @requires("open")
    async def _answer_health(self, _request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    @requires("open")
    async def _answer_ready(self, _request: web.Request) -> web.Response:
        ready, reason = self._ready()
        answer = {"ready": ready, "reason": reason}
        return web.json_response(answer, status=200 if ready else 503)

    @requires("read")
    async def _answer_status(self, _request: web.Request) -> web.Response:
        return web.json_response(finite(dict(self._status())))

    @requires("read")
    async def _answer_metrics(self, _request: web.Request) -> web.Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=self._metrics.render(), headers={"Content-Type": kind})

    @requires("read")
    async def _answer_config(self, _request: web.Request) -> web.Response:
        return web.json_response(self._config)
