"""Serves operations to many clients over HTTP/2.

* ``POST /v1/<op>``: an encoded message in, an encoded message out. Status 200,
  or that of an error whose code and facts are the body (msgpack).
* ``GET /healthz``: JSON, for people and probes.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.http2.limits.budget import BodyBudget
from paramfleet_shared.net.http2.limits.pace import look_period_s
from paramfleet_shared.net.http2.stream import Held
from paramfleet_shared.net.rights import Rights
from paramfleet_shared.net.rpc.connection.limits import (
    Admission,
    ConnectionTable,
    Repeats,
    quota_of,
)
from paramfleet_shared.net.rpc.connection.listener import Listener
from paramfleet_shared.net.rpc.connection.proving import Proving
from paramfleet_shared.net.rpc.connection.unix_socket import bind_nearby
from paramfleet_shared.net.rpc.faults import NO_FAULTS, FaultHook
from paramfleet_shared.net.rpc.session import Callers, Handler, Request, Service, Session
from paramfleet_shared.net.rpc.tasks import TaskSet
from paramfleet_shared.net.rpc.tracing import TracedSession, Tracing, traced
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.tls import TlsEnd
from paramfleet_shared.net.wire.limits import DEFAULT_LIMITS, Limits
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.memory import machine_memory
from paramfleet_shared.system.open_files import num_open_files

__all__ = ["CannotListenError", "Handler", "PortInUseError", "Request", "RpcServer"]

log = logging.getLogger(__name__)

_BUDGET_PART = 8
_MIN_BODIES = 2
"""How many of the longest bodies there is memory for, however little there is."""

_REPEAT_S = 10.0
"""Seconds between two log lines about requests that found no memory."""


class CannotListenError(ContractError):
    """The address to serve on is not one of this machine, or not allowed."""

    code = "contract.cannot_listen"
    host: str
    port: int
    reason: str
    sentence = "cannot listen on {host} port {port}: {reason}"


class PortInUseError(ContractError):
    """Another process listens on the port."""

    code = "contract.port_in_use"
    host: str
    port: int
    sentence = (
        "port {port} of {host} is in use: stop the other process, or choose port 0 "
        "to get a free one"
    )


class RpcServer:
    """Listens, and hands every request to the handler of its operation.

    Used from one event loop. Start it with ``start``; end it with ``drain``,
    then ``close``.

    Args:
        handlers: By operation; see ``Handler`` for their duties.
        name: This server's name, as "pserver 0": the one that its clients call it by, unless
            ``identify`` says another.
        limits: What clients may not pass.
        clock: Time.
        health: What ``/healthz`` answers; plain JSON values.
        faults: A test's plan of faults.
        tls: Serve TLS, to callers with such certificates.
        rights: By operation the roles whose certificates may ask for it; under TLS nobody may
            ask for any other.
        secret: What callers prove to know before their first call is read; None asks for
            nothing.
        is_named: Whether ``name`` is final. If not, callers must prove themselves after
            ``identify``, and wait for it.
        tracing: Make a span of each request; None makes none.
        nearby: Whether processes of this machine may come by Unix sockets, unless it serves
            TLS.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        handlers: Mapping[str, Handler],
        *,
        name: str,
        clock: Clock,
        limits: Limits = DEFAULT_LIMITS,
        health: Callable[[], Mapping[str, Any]] = dict,
        faults: FaultHook = NO_FAULTS,
        tls: TlsEnd | None = None,
        rights: Rights = MappingProxyType({}),
        secret: JobSecret | None = None,
        is_named: bool = True,
        tracing: Tracing | None = None,
        nearby: bool = False,
    ) -> None:
        if tracing is not None:
            handlers = {op: traced(op, handler, tracing) for op, handler in handlers.items()}
        self._session = Session if tracing is None else TracedSession
        self._tasks = TaskSet()
        self._callers = Callers()
        self._service = Service(
            name=name,
            handlers=handlers,
            health=health,
            limits=limits,
            clock=clock,
            faults=faults,
            tasks=self._tasks,
            callers=self._callers,
            tls=tls,
            rights=rights,
        )
        self._proving: Proving | None = None
        if secret is not None:
            self._proving = Proving(
                secret.key("connections"),
                server=name,
                timeout_s=limits.connect_timeout_s,
            )
            if is_named:
                self._proving.name = name
        self._nearby = nearby
        self._budget = BodyBudget(limits.server_budget_bytes or _default_budget(limits))
        self._num_refused = 0
        self._repeats = Repeats(_REPEAT_S)
        self._listener: Listener | None = None
        self._sessions = self._callers.sessions
        self._sweep: asyncio.TimerHandle | None = None
        self._period_s = look_period_s(limits)

    async def start(self, host: str, port: int = 0) -> int:
        """Listen, and return the bound port; ``port`` 0 picks a free one.

        Raises:
            PortInUseError: if another process has the port.
            CannotListenError: if the address cannot be used.
        """
        try:
            bound = await self._listen(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host=host, port=port) from error
            raise CannotListenError(host=host, port=port, reason=str(error)) from error
        self._schedule_sweep()
        return bound

    def identify(self, name: str) -> None:
        """Say by which name clients call this server, as soon as that is known."""
        if self._proving is not None:
            self._proving.identify(name)

    @property
    def num_connections(self) -> int:
        """Return the number of clients connected."""
        return len(self._sessions)

    @property
    def num_held(self) -> Held:
        """Return what requests that come and answers that leave hold, of all clients."""
        held = [session.connection.num_held for session in self._sessions]
        return Held(sum(each.receiving for each in held), sum(each.sending for each in held))

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing new, and finish the calls that came.

        Returns:
            True if every call was answered; False if ``timeout_s`` was too short.
        """
        self._stop_listening()
        sessions = list(self._sessions)
        for session in sessions:
            session.drain()
        if not sessions:
            return True
        _, open_ = await asyncio.wait([s.closed for s in sessions], timeout=timeout_s)
        return not open_

    async def close(self) -> None:
        """Cancel handlers, close every connection and the socket. May be called twice."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._stop_listening()
        await self._tasks.close()
        if self._proving is not None:
            self._proving.close()
        sessions = list(self._sessions)
        for session in sessions:
            session.close()
        if sessions:
            await asyncio.wait([session.closed for session in sessions])
        if self._listener is not None:
            await self._listener.wait_closed()
            self._listener = None

    async def _listen(self, host: str, port: int) -> int:
        """Listen, and return the port.

        Raises:
            OSError: if the address can't be listened on.
        """
        service, limits = self._service, self._service.limits
        quota = quota_of(
            num_open_files=num_open_files(),
            max_connections=limits.max_connections,
            per_peer=limits.max_connections_per_peer,
        )
        self._listener = listener = Listener(
            self._new_connection,
            ConnectionTable(quota, self._budget),
            clock=service.clock,
            server=service.name,
            tls=service.tls,
        )
        port_now = await listener.open(host, port)
        for name in listener.names if self._nearby and service.tls is None else ():
            sock = bind_nearby(name)
            if sock is not None:
                await listener.add(sock)
        return port_now

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _new_connection(self, admission: Admission) -> asyncio.BaseProtocol:
        if self._proving is None:
            return self._new_session(admission)
        return self._proving.begin(
            admission.peer, partial(self._new_session, admission), admission.release
        )

    def _new_session(self, admission: Admission) -> Session:
        session = self._session(self._service, admission)
        session.closed.add_done_callback(lambda _: admission.release())
        return session

    def _schedule_sweep(self) -> None:
        at = self._service.clock.monotonic() + self._period_s
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._period_s, self._expire, at)

    def _expire(self, due_at: float) -> None:
        """Look at every connection; but after standing still, read first what has come."""
        now = self._service.clock.monotonic()
        if now - due_at <= self._period_s:
            for session in list(self._sessions):
                was_open = session.connection.end_reason is None
                session.expire(now)
                if was_open and session.connection.end_reason is not None:
                    self._say_cut(session, now)
        self._say_refused(now)
        if self._listener is not None:
            self._listener.look()
        self._schedule_sweep()

    def _say_cut(self, session: Session, now: float) -> None:
        reason = session.connection.end_reason
        times = self._repeats.count(f"cut {reason}", now)
        if times:
            facts = {"server": self._service.name, "peer": session.peer, "times": times}
            log.warning("connections.cut", extra={**facts, "reason": reason})

    def _say_refused(self, now: float) -> None:
        num = self._budget.num_refused - self._num_refused
        self._num_refused += num
        times = self._repeats.count("bodies.refused", now, num=num) if num else 0
        if times:
            facts = {"server": self._service.name, "times": times}
            held = {"held": self._budget.num_held, "limit": self._budget.limit_bytes}
            log.warning("bodies.refused", extra={**facts, **held})


def _default_budget(limits: Limits) -> int:
    return max(machine_memory().total // _BUDGET_PART, _MIN_BODIES * limits.max_body_bytes)
