"""The admin address of a process: health, status, metrics and settings over HTTP/1.1."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware
from typing_extensions import override

from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.access import (
    GATE,
    NOBODY,
    Gate,
    identity_of,
    require_marks,
    requires,
)
from paramfleet_shared.net.rpc.connection.guarded import AdminLimits, Guarded
from paramfleet_shared.net.rpc.connection.limits import (
    Admission,
    ConnectionTable,
    Repeats,
    quota_of,
)
from paramfleet_shared.net.rpc.connection.listener import Listener
from paramfleet_shared.net.tls import TlsEnd
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.system.open_files import num_open_files
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry, finite

__all__ = ["AdminLimits", "AdminPortInUseError", "AdminServer"]

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_NAME = "the admin address"
_STOP_TIMEOUT_S = 1.0
"""Seconds that open admin connections get at the end."""

_LINGER_S = 2.0
"""Seconds in which the rest of a refused body is read."""

_CALLERS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""What only a caller can get wrong."""

_LIMITS = AdminLimits()
_MAX_LOOK_S = 1.0
_REPEAT_S = 10.0
"""Seconds between two log lines that say the same."""


class AdminPortInUseError(ContractError):
    """The admin address can't be listened on."""

    code = "contract.admin_port_in_use"
    host: str
    port: int
    reason: str
    sentence = "can't listen on {host} port {port}, the admin address: {reason}"


class _HttpErrors(logging.Logger):
    """What aiohttp logs, at most once in a while.

    What a caller got wrong is named by the kind of its error alone: the text has the caller's
    bytes. What a handler of ours got wrong keeps its traceback.
    """

    def __init__(self, repeats: Repeats, clock: Clock) -> None:
        super().__init__(__name__, logging.ERROR)
        self._repeats = repeats
        self._clock = clock

    @override
    def handle(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        kind = type(error).__name__
        times = self._repeats.count(f"http {kind}", self._clock.monotonic())
        if not times:
            return
        facts = {"server": _NAME, "error": kind, "times": times}
        if isinstance(error, _CALLERS):
            log.warning("admin.request_refused", extra=facts)
        else:
            log.error("admin.request_failed", exc_info=error, extra=facts)


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
        around: Middlewares for what the gate lets pass, the outermost first.
        gate: Who may ask; without one only the health is answered.
        tls: Serve TLS. Callers without a certificate are served what the gate lets them.
        limits: What callers may not pass.
        clock: Time.

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
        around: Sequence[Middleware] = (),
        gate: Gate | None = None,
        tls: TlsEnd | None = None,
        limits: AdminLimits = _LIMITS,
        clock: Clock | None = None,
    ) -> None:
        self._status = status
        self._ready = ready
        self._metrics = metrics
        self._config = dict(config or {})
        self._tls = tls
        self._limits = limits
        self._clock = clock or SystemClock()
        self._listener: Listener | None = None
        self._guarded: set[Guarded] = set()
        self._repeats = Repeats(_REPEAT_S)
        self._look: asyncio.TimerHandle | None = None
        gate = gate or Gate()
        app = web.Application(
            middlewares=[_watch, gate.middleware, *around, _keep_known, self._read_in_time],
            client_max_size=limits.max_body_bytes,
        )
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
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_HttpErrors(self._repeats, self._clock),
            shutdown_timeout=_STOP_TIMEOUT_S,
            keepalive_timeout=limits.keep_alive_s,
            lingering_time=_LINGER_S,
        )

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
        if self._look is not None:
            self._look.cancel()
        if self._listener is not None:
            await self._listener.wait_closed()
        await self._runner.cleanup()

    async def _listen(self, host: str, port: int) -> int:
        limits = self._limits
        quota = quota_of(
            num_open_files=num_open_files(),
            max_connections=limits.max_connections,
            per_peer=limits.max_connections_per_peer,
            is_admin=True,
        )
        self._listener = listener = Listener(
            self._guard,
            ConnectionTable(quota, evicts=True),
            clock=self._clock,
            server=_NAME,
            tls=self._tls,
        )
        bound = await listener.open(host, port)
        self._schedule_look()
        return bound

    def _guard(self, admission: Admission) -> Guarded:
        server = self._runner.server
        assert server is not None, "set up"
        return Guarded(
            server(),
            admission,
            limits=self._limits,
            clock=self._clock,
            guarded=self._guarded,
        )

    def _schedule_look(self) -> None:
        limits = self._limits
        shortest_s = min(limits.head_timeout_s, limits.unread_timeout_s)
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(min(_MAX_LOOK_S, shortest_s / 4), self._cut_late)

    def _cut_late(self) -> None:
        """Cut the connections that are too slow."""
        now = self._clock.monotonic()
        if self._listener is not None:
            self._listener.look()
        for each in list(self._guarded):
            reason = each.cut_if_late(now)
            times = 0 if reason is None else self._repeats.count(f"cut {reason}", now)
            if times:
                facts = {"server": _NAME, "peer": each.peer, "times": times}
                log.warning("connections.cut", extra={**facts, "reason": reason})
        self._schedule_look()

    @web.middleware
    async def _read_in_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Read a body whole before its handler runs, who then finds it there."""
        if request.body_exists:
            try:
                async with asyncio.timeout(self._limits.body_timeout_s):
                    await request.read()
            except TimeoutError:
                return _last_answer(408, "the body took too long")
            except _CALLERS:
                return _last_answer(400, "the body isn't whole")
        return await handler(request)

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


def _last_answer(status: int, text: str) -> web.Response:
    response = web.Response(status=status, text=f"{text}\n")
    response.force_close()
    return response


@web.middleware
async def _watch(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the connection know that a head is whole."""
    guarded = _guarded_of(request)
    if guarded is None:
        return await handler(request)
    guarded.began()
    try:
        answer = await handler(request)
        if identity_of(request) is NOBODY:  # a place is for who has shown something
            answer.force_close()
        return answer
    finally:
        guarded.ended()


@web.middleware
async def _keep_known(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the connection know that its caller is known; before the body, which may be long."""
    guarded = _guarded_of(request)
    if guarded is not None and identity_of(request) is not NOBODY:
        guarded.prove()
    return await handler(request)


def _guarded_of(request: web.Request) -> Guarded | None:
    transport = request.transport
    guarded = None if transport is None else transport.get_protocol()
    return guarded if isinstance(guarded, Guarded) else None
