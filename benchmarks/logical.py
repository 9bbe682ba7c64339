"""Workers and a pserver in one process and one thread, in a time that is counted in steps.

What decides what a job learns is the product's own: the modes of the client (``GeoMode`` and
``AsyncMode`` with all below them) and the pserver's operations (``Routes`` with tables and
recorders). What is left out is what only decides how fast: sockets, processes and threads.

One tick is one step of every worker. Nobody is slower than another, and a change travels for
a tick:

1. every worker looks up its rows, and computes its gradients;
2. the pserver takes what was sent in the tick before, in the order it was sent;
3. every worker steps: it sends, and takes in what has arrived. Who is first changes by chance.

So a gradient of async is computed without the last step of anybody, its own worker's
included, and a GEO worker hears of an exchange one step later. A worker that waits for an
answer lets all that was sent arrive at once: in first steps, which wait, a gradient lacks only
what others compute in the same tick.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

import torch

from paramfleet.config.dense_limits import DenseLimits
from paramfleet.config.strategy import TrainingMode
from paramfleet.nn.table_binding import share_tables
from paramfleet.tables.row_store import RowStore
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.job import Job
from paramfleet.training.modes.asynchronous.mode import AsyncMode
from paramfleet.training.modes.base import Mode, ModelTables, collect_tables
from paramfleet.training.modes.geo.mode import GeoMode
from paramfleet.training.modes.local import LocalMode
from paramfleet.transport.outbox import Outbox
from paramfleet.transport.requests import Author, ReadPlan
from paramfleet_pserver.api.routes import Routes
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.rpc.session import Request
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["Alone", "LogicalJob", "LogicalWorker"]

NUM_SHARDS = 4
"""Of every table, on the one pserver."""

SETTLING_TURNS = 8
"""Turns of the loop after which every task that needn't wait for a tick has come so far."""

TRAVELLING = frozenset({"push", "exchange"})
"""Operations that take a tick."""


class LogicalWorker:
    """A worker's model, its optimizer, and the mode that steps it.

    Args:
        model: With rows in ``fleet.nn`` modules.
        optimizer: Over its parameters.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        share_tables(model)
        self.model = model
        self.optimizer = optimizer
        self.tables: ModelTables = collect_tables(optimizer)
        self.mode: Mode

    def step(self, *, examples: int) -> None:
        """Step with the gradients that are pending, and forget them."""
        self.mode.step(examples=examples)
        self.optimizer.zero_grad()


class Alone:
    """One process without servers, trained by the same calls."""

    def __init__(self, worker: LogicalWorker) -> None:
        self.workers = [worker]
        stores = [RowStore.of(table) for table, _ in worker.tables.sparse]
        for (table, _), store in zip(worker.tables.sparse, stores, strict=True):
            table.bind(store)
        worker.mode = LocalMode(worker.optimizer, worker.tables, stores)

    def deliver(self) -> None:
        """Nothing travels."""

    def finish(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


class LogicalJob:
    """A pserver and the workers of a job.

    Args:
        workers: Of one model each, with equal first values.
        mode: ``async`` or ``geo``.
    """

    def __init__(self, workers: Sequence[LogicalWorker], mode: TrainingMode) -> None:
        self.workers = list(workers)
        self._loop = asyncio.new_event_loop()
        self._owners = Owners(1)
        store = TableStore(shards=range(NUM_SHARDS), num_shards=NUM_SHARDS, num_owners=1)
        clock = SystemClock()
        self._server = Routes(store, owners=self._owners, server=0, clock=clock)
        self._road = _Road(self._serve)
        self._ending = 0
        for rank, worker in enumerate(self.workers):
            communicator = _Communicator(self._loop, self._road, self._end_next)
            pservers, author = (
                cast("Any", _PServers(self._road)),
                Author(rank=rank, incarnation=1),
            )
            job = Job(
                communicator=cast("Any", communicator),
                pservers=pservers,
                author=author,
                answering=cast("Any", _NothingAsked()),
                worker_num=len(self.workers),
                host="127.0.0.1",
                times=StepTimes(clock.monotonic),
            )
            kind = GeoMode if mode.name == "geo" else AsyncMode
            worker.mode = kind(job, mode, worker.optimizer, worker.tables)
            worker.mode.start()

    def deliver(self) -> None:
        """Let the pserver take what was sent before."""
        self._road.open()
        self._loop.run_until_complete(_settle(self._road))

    def finish(self) -> None:
        """End the training of all workers, as ``finish_training`` does."""
        self._ending = 1
        self.workers[0].mode.finish()

    def close(self) -> None:
        """Stop the loop and the owner's thread."""
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(_settle(self._road))
        self._loop.run_until_complete(self._owners.close())
        self._loop.close()

    def _end_next(self) -> None:
        """Be called where a worker that has sent all waits for the others to do so, too."""
        if self._ending and self._ending < len(self.workers):
            self._ending += 1
            self.workers[self._ending - 1].mode.finish()

    async def _serve(self, op: str, message: Message) -> Message:
        own = {name: tensor.copy() for name, tensor in message.tensors.items()}
        carried = Message(fields=message.fields, tensors=own)
        request = Request(op=op, message=carried, peer="worker", deadline=None, is_alone=True)
        answer = self._server.handle(op, request)
        return answer if isinstance(answer, Message) else await answer


class _NothingAsked:
    """A logical job saves nothing, so that nobody asks a worker anything."""

    def begin(self, answers: Mapping[str, Any]) -> None:
        """Answer nothing."""


class _Road:
    """Holds what travels until the next tick."""

    def __init__(self, serve: Callable[[str, Message], Coroutine[Any, Any, Message]]) -> None:
        self._serve = serve
        self._gates: list[asyncio.Event] = []
        self.num_arriving = 0
        """Messages that the pserver works on."""

    async def carry(self, op: str, message: Message) -> Message:
        """Return the pserver's answer."""
        if op in TRAVELLING:
            gate = asyncio.Event()
            self._gates.append(gate)
            await gate.wait()
        self.num_arriving += 1
        try:
            return await self._serve(op, message)
        finally:
            self.num_arriving -= 1

    def open(self) -> None:
        """Let all that waits arrive."""
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.set()


async def _settle(road: _Road) -> None:
    """Return when nothing happens any more before the next tick."""
    quiet = 0
    while quiet < SETTLING_TURNS:
        quiet = 0 if road.num_arriving else quiet + 1
        await asyncio.sleep(0)


class _Session:
    """The membership of a worker that is nobody's to lose."""

    elastic = False

    def __init__(self, end_next: Callable[[], None]) -> None:
        self._end_next = end_next

    def has_passed(self, name: str) -> bool:
        """Return that the workers started in the order of their ranks."""
        del name
        return True

    async def gather(
        self, name: str, payload: bytes, *, timeout_s: float | None = None, at: str = ""
    ) -> list[bytes]:
        """Return this worker's payload alone: ``wait`` has let the others come.

        No model here has buffers to agree on.
        """
        del name, timeout_s, at
        return [payload]


class _StillClock:
    """No time passes, so that as many steps wait for pservers as where these are near."""

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        del seconds


class _Communicator:
    """What a mode asks of ``Communicator``, on a loop that runs only while it is waited for."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, road: _Road, end_next: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._road = road
        self._end_next = end_next
        self._spawned: set[asyncio.Task[Any]] = set()
        self.session = _Session(end_next)
        self.clock = _StillClock()

    def raise_failure(self) -> None:
        """Nothing fails in the background."""

    def wait(
        self, work: Coroutine[Any, Any, Any], *, meanwhile: Callable[[], None] | None = None
    ) -> Any:
        """Run ``work`` to its end, with as many ticks as it takes."""
        if meanwhile is not None:
            meanwhile()
        if getattr(work, "cr_code", None) is _Session.gather.__code__:
            self._end_next()
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, Any]) -> "_Flying":
        """Begin ``work``; it goes on with the ticks."""
        flying = _Flying(self._loop.create_task(work), self._loop, self._road)
        self._loop.run_until_complete(_settle(self._road))
        return flying

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin what runs until the job is closed."""
        self._spawned.add(self._loop.create_task(work))


class _Flying:
    """A future of work that needs ticks."""

    def __init__(
        self, task: "asyncio.Task[Any]", loop: asyncio.AbstractEventLoop, road: _Road
    ) -> None:
        self._task = task
        self._loop = loop
        self._road = road

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._task.done()

    def result(self) -> Any:
        """Return what it returned, after as many ticks as it takes."""
        while not self._task.done():
            self._road.open()
            self._loop.run_until_complete(_settle(self._road))
        return self._task.result()


class _PServers:
    """What a mode asks of ``PServers``, of one that is in this process."""

    def __init__(self, road: _Road) -> None:
        self._road = road
        self.placement = Placement(endpoints=("",), num_shards=NUM_SHARDS)
        self.dense = DenseLimits()
        self.divides = False
        self.step_timeout_s = 60.0
        self.outbox = Outbox(self.placement)

    async def call(
        self,
        op: str,
        messages: Sequence[Message],
        *,
        timeout_s: float | None = None,
    ) -> list[Message]:
        """Return the answer to the one message."""
        del timeout_s
        return [await self._road.carry(op, messages[0])]

    async def change(
        self,
        op: str,
        messages: Sequence[Message],
        *,
        corrected: Callable[[FleetError], Sequence[Message] | None] = lambda _: None,
        rows: Sequence[RowIds | None] = (),
    ) -> list[Message]:
        """Call, and once more with what is corrected: no checkpoint holds it up.

        Raises:
            FleetError: if it is refused.
        """
        del rows  # nothing is sent again: the pserver doesn't die
        try:
            return await self.call(op, messages)
        except FleetError as refusal:
            instead = corrected(refusal)
            if instead is None:
                raise
        return await self.call(op, instead)

    async def pull(
        self,
        plan: ReadPlan,
        *,
        rank: int,
        min_step: int,
        incarnation: int | None = None,
        version: int | None = None,
        confirms: int | None = None,
    ) -> list[Message]:
        """Return the answers to a plan."""
        assert version is None, "no worker comes back here"
        assert confirms is None, "and none is gone on without"
        messages = plan.messages(rank=rank, min_step=min_step, incarnation=incarnation)
        return await self.call("pull", messages)

    async def call_all(
        self, op: str, fields: dict[str, Any], *, timeout_s: float | None = None
    ) -> list[Message]:
        """Call with fields alone."""
        return await self.call(op, [Message(fields=fields, tensors={})], timeout_s=timeout_s)

    async def call_one(
        self, server: int, op: str, fields: dict[str, Any], *, timeout_s: float
    ) -> Message:
        """Call the one pserver with fields alone."""
        del server
        return (await self.call_all(op, fields, timeout_s=timeout_s))[0]
