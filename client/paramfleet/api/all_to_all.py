"""All-to-all among workers: what each has for each other, straight from one to the other.

For the time of an exchange every worker listens on a port of its own. Endpoints and, in
the end, how many messages went from whom to whom are gathered over the coordinator, so
that every worker knows that it has all that was sent to it, each message once.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgpack

from paramfleet.config.settings import WorkerSettings
from paramfleet.session.session import Session
from paramfleet.transport.communicator import Communicator
from paramfleet_shared.errors import IntegrityError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.net.rpc.server import Request, RpcServer
from paramfleet_shared.net.secret import secret_of
from paramfleet_shared.net.tls import tls_of
from paramfleet_shared.net.wire.message import MalformedMessageError, Message

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Exchange", "ExchangeLostError", "Outgoing", "Receive"]

Outgoing = Callable[[Sequence[int]], Iterator[tuple[int, Message]]]
"""Takes the ranks that take part; yields for whom a message is, and the message."""

Receive = Callable[[int, int, Message], None]
"""Takes sender, number of the message among the sender's, and the message.

It is called on the event loop, in any order, once for every message; its tensors are the
receiver's own.
"""

_OPERATION = "exchange"

_MAX_MESSAGES = 1 << 32
"""Messages of one worker in one exchange."""


class ExchangeLostError(IntegrityError):
    """A worker has not as many messages as were sent to it."""

    code = "integrity.exchange_lost"
    name: str
    source: int
    sent: int
    received: int
    sentence = "exchange {name!r}: worker {source} sent {sent} messages and {received} came"


class Exchange:
    """Exchanges messages among the workers of this process's job.

    Args:
        session: This process's.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, name: str, outgoing: Outgoing, receive: Receive, *, in_flight: int) -> None:
        """Send all messages and return when all that others sent are here.

        Every worker calls it, and waits for the slowest. Alone, a process sends to itself.

        Args:
            name: Of the exchange, for errors.
            outgoing: Called once, in this thread; makes messages as they are sent.
            receive: Called for every message, also one to itself.
            in_flight: Messages that may be on their way at a time.

        Raises:
            BarrierTimeoutError: if a worker didn't come in time; it says which.
            JobFailedError: as soon as a member of the job died.
            ExchangeLostError: if a message is missing in the end.
            FleetError: if a worker can't be reached, or refuses a message.
        """
        remedy = "exchange files before training; local_shuffle, or DistributedSampler"
        function = "data.InMemoryDataset.global_shuffle"
        communicator = self._session.backend.link(function, remedy=remedy)
        if communicator is None:
            for number, (_, message) in enumerate(outgoing([0])):
                receive(0, number, message)
            return
        backend = self._session.backend
        exchange = _Running(
            name, communicator, self._session.settings, receive, gather=backend.gather
        )
        try:
            with self._session.meeting("fleet.exchange"):
                ranks = exchange.open()
                exchange.send(outgoing(ranks), in_flight=in_flight)
                exchange.settle()
        finally:
            exchange.close()


class _Running:
    """One exchange of one worker; its state belongs to the communicator's loop."""

    def __init__(
        self,
        name: str,
        communicator: Communicator,
        settings: WorkerSettings,
        receive: Receive,
        *,
        gather: Callable[[str, bytes], list[bytes]],
    ) -> None:
        self._name = name
        self._communicator = communicator
        self._settings = settings
        self._tls = tls_of(settings, "worker")
        self._secret = secret_of(settings)
        self._receive = receive
        self._gather_all = gather
        self._rank = communicator.session.member.index
        self._channels: dict[int, Channel] = {}
        self._sent: Counter[int] = Counter()
        self._seen: set[tuple[int, int]] = set()
        self._ranks: frozenset[int] = frozenset()
        self._opened = asyncio.Event()
        self._server: RpcServer | None = None

    def open(self) -> list[int]:
        """Listen and learn where the others do; returns the ranks that take part."""
        endpoint = self._communicator.wait(self._listen())
        gathered = self._gather("endpoints", msgpack.packb([self._rank, endpoint]))
        endpoints = dict(msgpack.unpackb(payload) for payload in gathered)
        for rank, place in endpoints.items():
            if rank != self._rank:
                self._channels[rank] = Channel(
                    place,
                    peer=f"worker {rank}",
                    clock=self._communicator.clock,
                    tls=self._tls and self._tls.expects("worker"),
                    secret=self._secret,
                )
        self._communicator.wait(self._begin(endpoints))
        return sorted(endpoints)

    def send(self, outgoing: Iterator[tuple[int, Message]], *, in_flight: int) -> None:
        """Send messages as they are made; returns when all have been answered."""
        waiting: deque[Future[None]] = deque()
        for number, (target, message) in enumerate(outgoing):
            if len(waiting) == in_flight:
                waiting.popleft().result()
            waiting.append(self._communicator.submit(self._pass(target, number, message)))
            self._sent[target] += 1
        while waiting:
            waiting.popleft().result()

    def settle(self) -> None:
        """Wait for all workers, and see that all that was sent has come.

        Raises:
            ExchangeLostError: if something hasn't.
        """
        payload = msgpack.packb([self._rank, dict(self._sent)])
        all_sent = self._gather("sent", payload)
        received = Counter(source for source, _ in self._seen)
        for gathered in all_sent:
            source, sent = msgpack.unpackb(gathered, strict_map_key=False)
            expected = sent.get(self._rank, 0)
            if received[source] != expected:
                raise ExchangeLostError(
                    name=self._name, source=source, sent=expected, received=received[source]
                )

    def close(self) -> None:
        """Close all connections; called once, after an error too."""
        self._communicator.say_last(self._close())

    def _gather(self, what: str, payload: bytes) -> list[bytes]:
        return self._gather_all(f"fleet.exchange.{what}", payload)

    async def _begin(self, ranks: Iterable[int]) -> None:
        """Take messages from now on, from the workers that take part."""
        self._ranks = frozenset(ranks)
        self._opened.set()

    async def _listen(self) -> str:
        server = RpcServer(
            {_OPERATION: self._take},
            name=f"worker {self._rank}",
            clock=self._communicator.clock,
            tls=self._tls and self._tls.accepts("worker"),
            rights={_OPERATION: frozenset({"worker"})},
            secret=self._secret,
            nearby=True,
        )
        port = await server.start(self._settings.bind or self._settings.host)
        self._server = server
        return join_endpoint(self._settings.host, port)

    async def _pass(self, target: int, number: int, message: Message) -> None:
        if target == self._rank:
            self._keep(target, number, message)
            return
        fields = {**message.fields, "source": self._rank, "number": number}
        await self._channels[target].call(
            _OPERATION,
            Message(fields=fields, tensors=message.tensors),
            timeout_s=self._settings.call_timeout_s,
        )

    async def _take(self, request: Request) -> Message:
        """Keep a message that came; another worker may know sooner who takes part.

        Raises:
            MalformedMessageError: if it doesn't say which it is of whom, or no other worker
                that takes part has sent it.
        """
        fields = request.message.fields
        source, number = fields.get("source"), fields.get("number")
        if type(source) is not int or type(number) is not int:
            raise MalformedMessageError(where="fields", rule="need source and number")
        if not 0 <= number < _MAX_MESSAGES:
            rule = f"must be a number from 0 to {_MAX_MESSAGES - 1}"
            raise MalformedMessageError(where="number", rule=rule)
        await self._opened.wait()
        if source == self._rank or source not in self._ranks:
            rule = f"must be another worker that takes part, as {source} isn't"
            raise MalformedMessageError(where="source", rule=rule)
        self._keep(source, number, request.message)
        return Message()

    def _keep(self, source: int, number: int, message: Message) -> None:
        """Receive a message, unless it is one that was sent again."""
        if (source, number) not in self._seen:
            self._receive(source, number, message)
            self._seen.add((source, number))

    async def _close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        if self._server is not None:
            await self._server.close()
