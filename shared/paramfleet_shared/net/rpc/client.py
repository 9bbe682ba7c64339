"""Asks one peer, many questions at a time, over one HTTP/2 connection."""

import asyncio
from collections.abc import Awaitable, Callable

from paramfleet_shared.net.http2.events import ResponseReceived
from paramfleet_shared.net.http2.headers.hpack_memo import Header
from paramfleet_shared.net.http2.stream import Held
from paramfleet_shared.net.rpc.alarm import DeadlinePassedError
from paramfleet_shared.net.rpc.answers import read_error
from paramfleet_shared.net.rpc.call_errors import ChannelClosedError, PeerUnreachableError
from paramfleet_shared.net.rpc.connection.connecting import Connector, RefusedPeer
from paramfleet_shared.net.rpc.connection.direct import DirectLink, Waker, request_headers
from paramfleet_shared.net.rpc.connection.link import CallLostError, ConnectionLostError, Link
from paramfleet_shared.net.rpc.connection.proof import PeerUnprovenError
from paramfleet_shared.net.rpc.deadlines import DeadlineExceededError
from paramfleet_shared.net.rpc.faults import NO_FAULTS, FaultHook, Verdict
from paramfleet_shared.net.rpc.tasks import TaskSet
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.tls import PeerRefusedError, TlsEnd
from paramfleet_shared.net.wire.limits import DEFAULT_LIMITS, Limits
from paramfleet_shared.net.wire.message import Buffer, Message, decode, encode
from paramfleet_shared.system.clock import Clock

__all__ = [
    "Channel",
    "ChannelClosedError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "PeerRefusedError",
    "PeerUnprovenError",
    "PeerUnreachableError",
]

_FIRST_BACKOFF_S = 0.02
_MAX_BACKOFF_S = 1.0


class Channel:
    """The way to one peer: connects when first needed, and again when it must.

    Used from one event loop; many calls may be in flight at once.

    Args:
        endpoint: ``host:port`` of the peer.
        peer: Its name, as "pserver 0".
        limits: What the peer may not pass.
        clock: Time.
        faults: A test's plan of faults.
        tls: Talk TLS, to a peer with such a certificate.
        secret: What both ends prove to know before a call is sent; None asks for nothing.
        resolve: Asked for the endpoint before each attempt to connect, for a
            peer that may come back elsewhere. If it raises a ``FleetError``, the
            attempt has failed.
        count: Told of every call that was answered well: the operation, and the bytes of
            the request's body and of the answer's. Retries and HTTP/2's framing are not in.

    Raises:
        MalformedEndpointError: if ``endpoint`` is not ``host:port``.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        endpoint: str,
        *,
        peer: str,
        clock: Clock,
        limits: Limits = DEFAULT_LIMITS,
        faults: FaultHook = NO_FAULTS,
        tls: TlsEnd | None = None,
        secret: JobSecret | None = None,
        resolve: Callable[[], Awaitable[str]] | None = None,
        count: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._connector = Connector(
            endpoint,
            peer=peer,
            limits=limits,
            clock=clock,
            tls=tls,
            secret=secret,
            resolve=resolve,
        )
        self.peer = peer
        self._limits = limits
        self._clock = clock
        self._faults = faults
        self._scheme = b"http" if tls is None else b"https"
        self._count = count
        self._tasks = TaskSet()
        self._link: Link | None = None
        self._connecting: asyncio.Task[str | RefusedPeer | None] | None = None
        self._closed = False

    @property
    def endpoint(self) -> str:
        """Return ``host:port`` of the peer, as it was last known."""
        return self._connector.endpoint

    async def call(
        self,
        op: str,
        message: Message,
        *,
        timeout_s: float,
        idempotent: bool = True,
        sent_before: bool = False,
    ) -> Message:
        """Ask the peer, and return its answer.

        The message's tensors are written from the arrays themselves: leave them
        unchanged until the call returns. If it raises or is cancelled, never
        change them again: their bytes may still be on their way.

        Whatever surely had no effect is tried again until the deadline; a call
        that may have had one only if it is ``idempotent``.

        Cancellation: before the request is sent, no effect; after, the outcome
        is unknown.

        Args:
            op: The operation.
            message: What it is given.
            timeout_s: Until when there must be an answer.
            idempotent: Whether the peer may be asked twice.
            sent_before: Whether it was sent already, by a connection that is lost.

        Raises:
            ChannelClosedError: if ``close`` was called before.
            PeerUnreachableError: if the deadline passed and the call was never sent.
            PeerRefusedError: if the peer's certificate isn't what it must be.
            PeerUnprovenError: if the peer doesn't know the job's secret, or we don't.
            DeadlineExceededError: if the deadline passed after it was sent.
            FleetError: whatever the peer answered, as the same class, ``remote`` set.
        """
        if self._closed:
            raise ChannelClosedError(peer=self.peer, operation=op)
        attempt = _Call(op, encode(message), self._clock.monotonic(), timeout_s)
        attempt.maybe_processed = sent_before
        link = self._link
        if link is not None and link.free and self._faults is NO_FAULTS:  # most calls
            attempt.begin(link)
            try:
                block = self._block(link, attempt)
                return self._read(attempt, await link.request(block, attempt.body, timeout_s))
            except DeadlinePassedError:
                raise self._too_late(attempt) from None
            except CallLostError as lost:
                attempt.link = None
                self._note(attempt, lost, idempotent=idempotent)
        return await self._ask_in_time(attempt, idempotent=idempotent)

    @property
    def num_held(self) -> Held:
        """Return what requests that leave and answers that come hold. Any thread may ask."""
        link = self._link
        return Held() if link is None else link.connection.num_held

    def reset(self) -> None:
        """Leave the connection: calls in flight are asked again, wherever the peer is then."""
        link, self._link = self._link, None
        if link is not None:
            link.abort("the peer is asked elsewhere")

    async def close(self) -> None:
        """Close the connection; calls in flight fail. May be called twice."""
        self._closed = True
        await self._tasks.close()
        links = list(self._connector.links)
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.closed for link in links])

    async def _ask_in_time(self, call: "_Call", *, idempotent: bool) -> Message:
        timer = asyncio.timeout(call.started + call.timeout_s - self._clock.monotonic())
        try:
            async with timer:
                return await self._ask_until_answered(call, idempotent=idempotent)
        except TimeoutError:
            assert timer.expired(), "those of the system are translated in _connect"
        raise self._too_late(call)

    async def _ask_until_answered(self, call: "_Call", *, idempotent: bool) -> Message:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            if call.num_lost:
                await self._clock.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
            try:
                return self._read(call, await self._ask_once(call))
            except CallLostError as lost:
                self._note(call, lost, idempotent=idempotent)

    def _note(self, call: "_Call", lost: CallLostError, *, idempotent: bool) -> None:
        """Take note of a lost attempt; raise if there must be no other."""
        call.num_lost += 1
        call.reason = lost.reason
        call.maybe_processed |= lost.processed
        if self._closed or (lost.processed and not idempotent):
            raise self._gone(call) from lost

    async def open_direct(self, waker: Waker) -> DirectLink | None:
        """Return a further connection, for a thread that waits for its calls itself.

        Args:
            waker: Ends its waits.

        Returns:
            None where there can't be one: with TLS, or while the peer can't be reached.
        """
        if self._scheme == b"https" or self._faults is not NO_FAULTS or self._closed:
            return None
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                link = await self._connector.connect()
                await link.wait_ready()
        except (CallLostError, PeerUnprovenError, TimeoutError):
            return None
        taken = link.detach()
        if taken is None:
            link.close()
            return None
        return DirectLink(
            *taken,
            authority=link.authority,
            limits=self._limits,
            clock=self._clock,
            waker=waker,
        )

    def read(self, op: str, num_sent: int, response: ResponseReceived) -> Message:
        """Return what the peer has answered to a request of so many bytes.

        Raises:
            read_error: Returns what is raised: whatever the peer answered, as the same class.
        """
        if response.status != 200:
            raise read_error(response.body, peer=self.peer, status=response.status)
        if self._count is not None:
            self._count(op, num_sent, len(response.body))
        return decode(response.body, self._limits)

    def _read(self, call: "_Call", response: ResponseReceived) -> Message:
        return self.read(call.op, call.num_bytes, response)

    async def _ask_once(self, call: "_Call") -> ResponseReceived:
        link = self._link
        if link is None or not link.usable:
            link = await self._connected()
        if self._faults is not NO_FAULTS:
            return await self._ask_with_faults(link, call)
        return await call.send(link, self._later_block(link, call))

    async def _ask_with_faults(self, link: Link, call: "_Call") -> ResponseReceived:
        block = self._later_block(link, call)
        verdict = self._faults.on_request(call.op)
        if verdict is Verdict.HOLD:
            verdict = await self._faults.on_hold(call.op)
            block = self._later_block(link, call)
        if verdict is Verdict.DROP:
            raise CallLostError("a planned fault dropped the request", processed=True)
        response = await call.send(link, block)
        if verdict is Verdict.DUPLICATE:
            response = await call.send(link, block)
        if await self._faults.on_reply(call.op) is Verdict.DROP:
            raise CallLostError("a planned fault dropped the reply", processed=True)
        return response

    def _block(self, link: Link, call: "_Call") -> bytes:
        """Return the encoded headers of a call that is sent as soon as it is made."""
        return link.block_of(
            (call.op, call.num_bytes, call.timeout_s),
            lambda: self._headers(link, call, call.timeout_s),
        )

    def _later_block(self, link: Link, call: "_Call") -> bytes:
        remaining_s = call.started + call.timeout_s - self._clock.monotonic()
        return link.connection.encode(self._headers(link, call, remaining_s))

    def _headers(self, link: Link, call: "_Call", remaining_s: float) -> list[Header]:
        return request_headers(
            call.op,
            call.num_bytes,
            remaining_s,
            scheme=self._scheme,
            authority=link.authority,
        )

    def _too_late(self, call: "_Call") -> DeadlineExceededError | PeerUnreachableError:
        waited_s = self._clock.monotonic() - call.started
        if call.link is not None and call.link.num_received == call.num_received_before:
            call.link.probe()
        if call.link is not None or call.maybe_processed:
            return DeadlineExceededError(peer=self.peer, operation=call.op, waited_s=waited_s)
        return self._unreachable(call)

    def _gone(self, call: "_Call") -> ConnectionLostError | PeerUnreachableError:
        if not call.maybe_processed:
            return self._unreachable(call)
        return ConnectionLostError(peer=self.peer, operation=call.op, reason=call.reason)

    def _unreachable(self, call: "_Call") -> PeerUnreachableError:
        return PeerUnreachableError(
            peer=self.peer,
            endpoint=self.endpoint,
            operation=call.op,
            waited_s=self._clock.monotonic() - call.started,
            reason=call.reason,
        )

    async def _connected(self) -> Link:
        """Return a usable link; all calls share one attempt to connect.

        Raises:
            CallLostError: if the attempt failed.
            PeerRefusedError: if it did over a certificate.
            PeerUnprovenError: if it did over the job's secret.
        """
        task = self._connecting
        if task is None or task.done():
            task = self._connecting = self._tasks.start(
                self._connect(), name=f"connect to {self.peer}"
            )
        await asyncio.wait((task,))
        if task.cancelled():
            raise CallLostError("the channel was closed", processed=False)
        link = self._link
        if link is None or not link.usable:
            reason = task.result() or "the connection ended"
            if isinstance(reason, RefusedPeer):
                raise reason.with_traceback(None)
            raise CallLostError(reason, processed=False)
        return link

    async def _connect(self) -> "str | RefusedPeer | None":
        """Try once; return why it failed, as an error if it always will; None if not."""
        try:
            self._link = await self._connector.connect()
        except (PeerRefusedError, PeerUnprovenError) as error:
            return error
        except CallLostError as lost:
            return lost.reason
        return None


class _Call:
    """What one ``Channel.call`` knows of itself across its attempts."""

    __slots__ = (
        "body", "link", "maybe_processed", "num_bytes", "num_lost", "num_received_before", "op",
        "reason", "started", "timeout_s",
    )  # fmt: skip

    def __init__(self, op: str, body: list[Buffer], started: float, timeout_s: float) -> None:
        self.op = op
        self.body = body
        self.num_bytes = sum(map(len, body))
        self.started = started
        self.timeout_s = timeout_s
        self.link: Link | None = None
        """Where the running attempt was sent; None while nothing is sent."""
        self.num_received_before = 0
        self.num_lost = 0
        """Attempts that have failed."""
        self.maybe_processed = False
        """Whether an attempt that has failed may have had its effect."""
        self.reason = "the deadline passed before an attempt to connect ended"

    async def send(self, link: Link, block: bytes) -> ResponseReceived:
        await link.wait_turn()
        self.begin(link)
        try:
            return await link.request(block, self.body)
        except CallLostError:
            self.link = None
            raise

    def begin(self, link: Link) -> None:
        """Take note of where the call is sent now."""
        self.link = link
        self.num_received_before = link.num_received
