"""Real servers on loopback in one process, and workers that talk to them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_pserver.api.routes import OPERATIONS, Routes
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.discovery.placement import Placement, range_of_shard
from paramfleet_shared.files.folders import CheckpointDirs
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.faults import NO_FAULTS, FaultHook
from paramfleet_shared.net.rpc.server import RpcServer
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.testing.patience import LATE_S

CLOCK = SystemClock()

Sparse = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass
class Received:
    """What a worker heard of one table in an exchange."""

    rows: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    dense: NDArray[np.float32] | None = None
    more: bool = False
    removed: set[int] = field(default_factory=set)


class Worker:
    """A worker's side of the wire: routes rows to servers and puts answers together."""

    def __init__(
        self, cluster: "Cluster", rank: int, incarnation: int, faults: FaultHook
    ) -> None:
        self.cluster = cluster
        self.rank = rank
        self.incarnation = incarnation
        self.placement = cluster.placement
        self.specs: dict[str, TableSpec] = {}
        self.sequence = 0
        self.acks: dict[tuple[int, str], int] = {}
        self.channels = [
            Channel(endpoint, peer=f"pserver {i}", clock=CLOCK, faults=faults)
            for i, endpoint in enumerate(cluster.placement.endpoints)
        ]

    async def call(
        self, server: int, op: str, message: Message, timeout_s: float = LATE_S
    ) -> Message:
        return await self.channels[server].call(op, message, timeout_s=timeout_s)

    async def ask(self, op: str, timeout_s: float = LATE_S, **fields: Any) -> list[Message]:
        """Ask every server the same."""
        message = Message(fields={"rank": self.rank, "incarnation": self.incarnation, **fields})
        return [
            await self.call(server, op, message, timeout_s)
            for server in range(len(self.channels))
        ]

    async def declare(
        self,
        *specs: TableSpec,
        mode: str = "async",
        worker_num: int = 1,
        max_staleness: int | None = None,
        async_rate: str = "full",
        on_worker_loss: str = "wait",
    ) -> list[Message]:
        replies = await self.ask(
            "declare",
            timeout_s=60.0,
            tables=[spec.to_wire() for spec in specs],
            mode=mode,
            worker_num=worker_num,
            max_staleness=max_staleness,
            async_rate=async_rate,
            on_worker_loss=on_worker_loss,
        )
        self.specs |= {spec.name: spec for spec in specs}
        return replies

    def change(self) -> dict[str, Any]:
        """Return the header's part of the change that was made last."""
        return ChangeIdentity(self.rank, self.incarnation, self.sequence).fields()

    def part_of(self, server: int, index: int, table: str, ids: NDArray[np.int64]) -> Any:
        """Return a server's slice of routed ids, its positions, and the tensors."""
        shards = self.placement.shards_of(server)
        routed = route(ids, self.placement.num_shards)
        offsets = routed.offsets[shards.start : shards.stop + 1]
        where = slice(int(offsets[0]), int(offsets[-1]))
        tensors = {f"{index}.ids": routed.ids[where], f"{index}.offsets": offsets - offsets[0]}
        return routed.positions[where], tensors

    def range_of(self, server: int, size: int) -> slice:
        shards, num = self.placement.shards_of(server), self.placement.num_shards
        return slice(
            range_of_shard(size, num, shards.start)[0],
            range_of_shard(size, num, shards.stop - 1)[1],
        )

    async def pull(
        self,
        table: str,
        ids: Sequence[int] | None = None,
        *,
        create: bool = False,
        min_version: int = 0,
        timeout_s: float = LATE_S,
        **more: int,
    ) -> NDArray[np.float32]:
        spec = self.specs[table]
        wanted = np.asarray(ids if ids is not None else [], np.int64)
        size = (len(wanted), spec.dim) if ids is not None else (spec.size,)
        out = np.full(size, np.nan, np.float32)
        for server in range(len(self.channels)):
            tensors: Mapping[str, NDArray[Any]] = {}
            where: Any = self.range_of(server, spec.size)
            if ids is not None:
                where, tensors = self.part_of(server, 0, table, wanted)
            fields = {
                "rank": self.rank,
                "min_version": min_version,
                "parts": [{"table": table, "create": create}],
                **more,
            }
            reply = await self.call(
                server, "pull", Message(fields=fields, tensors=tensors), timeout_s
            )
            out[where] = reply.tensors["0.rows"]
        return out

    def messages(
        self,
        parts: Mapping[str, Any],
        *,
        tensor: str,
        extra: Callable[[int, str], Mapping[str, Any]],
        **fields: Any,
    ) -> list[Message]:
        """Return one message a server; each part is (ids, rows), or the dense numbers."""
        out = []
        self.sequence += 1
        for server in range(len(self.channels)):
            wire: list[dict[str, Any]] = []
            tensors: dict[str, NDArray[Any]] = {}
            for index, (table, content) in enumerate(parts.items()):
                wire.append({"table": table, **extra(server, table)})
                if isinstance(content, tuple):
                    positions, mine = self.part_of(server, index, table, content[0])
                    tensors |= mine
                    tensors[f"{index}.{tensor}"] = content[1][positions]
                else:
                    where = self.range_of(server, self.specs[table].size)
                    tensors[f"{index}.{tensor}"] = content[where]
            head = {**self.change(), "parts": wire}
            out.append(Message(fields={**head, **fields}, tensors=tensors))
        return out

    def push_messages(
        self, parts: Mapping[str, Any], *, step: int, lr: float = 1.0, weight: float = 1.0
    ) -> list[Message]:
        return self.messages(
            parts, tensor="grads", extra=lambda *_: {"lr": lr}, step=step, weight=weight
        )

    async def send(self, op: str, messages: Sequence[Message]) -> list[Message]:
        return [await self.call(server, op, m) for server, m in enumerate(messages)]

    async def push(
        self, parts: Mapping[str, Any], *, step: int = 0, lr: float = 1.0, weight: float = 1.0
    ) -> list[Message]:
        return await self.send(
            "push", self.push_messages(parts, step=step, lr=lr, weight=weight)
        )

    def remove_messages(
        self, table: str, ids: Sequence[int], *, step: int = 0
    ) -> list[Message]:
        self.sequence += 1
        fields = {**self.change(), "table": table, "step": step}
        wanted = np.asarray(ids, np.int64)
        return [
            Message(fields=fields, tensors=self.part_of(server, 0, table, wanted)[1])
            for server in range(len(self.channels))
        ]

    def write_messages(
        self, table: str, rows: Any, *, step: int = 0, **about: bool
    ) -> list[Message]:
        """Return one message a server; ``rows`` are ids and values."""
        self.sequence += 1
        fields = {**self.change(), "table": table, "step": step, **about}
        messages = []
        for server in range(len(self.channels)):
            positions, tensors = self.part_of(server, 0, table, rows[0])
            tensors["0.values"] = rows[1][positions]
            messages.append(Message(fields=fields, tensors=tensors))
        return messages

    async def write(
        self, table: str, rows: Any, *, step: int = 0, **about: bool
    ) -> list[Message]:
        """Give rows values on every server; ``rows`` are ids and values."""
        messages = self.write_messages(table, rows, step=step, **about)
        return await self.send("write", messages)

    async def remove(self, table: str, ids: Sequence[int], *, step: int = 0) -> int:
        """Remove rows on every server; return how many there were."""
        answers = await self.send("remove", self.remove_messages(table, ids, step=step))
        return sum(answer.fields["removed"] for answer in answers)

    async def exchange(
        self,
        parts: Mapping[str, Any],
        *,
        step: int = 0,
        max_rows: int = 1 << 20,
        damping: float = 0.0,
        guarded_steps: int = 0,
    ) -> dict[str, Received]:
        """Exchange with every server, and note what to acknowledge next time."""
        messages = self.messages(
            parts,
            tensor="deltas",
            extra=lambda server, table: {
                "ack": self.acks.get((server, table), 0),
                "max_rows": max_rows,
                "damping": damping,
                "guarded_steps": guarded_steps,
            },
            step=step,
        )
        received: dict[str, Received] = {table: Received() for table in parts}
        for server, reply in enumerate(await self.send("exchange", messages)):
            for index, table in enumerate(parts):
                reported, facts = received[table], reply.fields["parts"][index]
                removed = reply.tensors.get(f"{index}.removed", np.empty(0, np.int64))
                reported.removed |= set(removed.tolist())
                rows = reply.tensors[f"{index}.rows"]
                self.acks[server, table] = facts["batch"]
                reported.more |= facts["more"]
                if f"{index}.ids" in reply.tensors:
                    ids = reply.tensors[f"{index}.ids"]
                    reported.rows |= dict(zip(ids.tolist(), rows, strict=True))
                else:
                    size = self.specs[table].size
                    reported.dense = (
                        np.empty(size, np.float32) if reported.dense is None else reported.dense
                    )
                    reported.dense[self.range_of(server, size)] = rows
        return received


class Cluster:
    """Servers that share a job's tables."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.placement = Placement(endpoints=("",), num_shards=1)
        self.routes: list[Routes] = []
        self.servers: list[RpcServer] = []

    async def start(
        self,
        num_servers: int,
        *,
        num_shards: int,
        faults: FaultHook,
        elastic: bool,
        returning: bool = False,
        dirs: CheckpointDirs,
        **of_store: Any,
    ) -> None:
        endpoints = []
        shards = Placement(endpoints=("",) * num_servers, num_shards=num_shards)
        for index in range(num_servers):
            owners = Owners(2)
            self._stack.push_async_callback(owners.close)
            store = TableStore(
                shards=shards.shards_of(index),
                num_shards=num_shards,
                num_owners=len(owners),
                **of_store,
            )
            routes = Routes(
                store,
                owners=owners,
                server=index,
                clock=CLOCK,
                elastic=elastic,
                returning=returning,
                dirs=dirs,
            )
            self.routes.append(routes)

            def handler(op: str, routes: Routes = routes) -> Any:
                return lambda request: routes.handle(op, request)

            server = RpcServer(
                {op: handler(op) for op in OPERATIONS},
                name=f"pserver {index}",
                clock=CLOCK,
                faults=faults,
            )
            self.servers.append(server)
            endpoints.append(f"127.0.0.1:{await server.start('127.0.0.1')}")
            self._stack.push_async_callback(server.close)
        self.placement = Placement(endpoints=tuple(endpoints), num_shards=num_shards)

    async def until(self, condition: Callable[[dict[str, Any]], Any], server: int = 0) -> None:
        """Return when the condition holds of a server's facts."""
        for _ in range(5000):
            if condition(self.routes[server].facts()):
                return
            await asyncio.sleep(0.001)
        pytest.fail("the condition never held")

    def worker(
        self, rank: int = 0, *, incarnation: int = 1, faults: FaultHook = NO_FAULTS
    ) -> Worker:
        worker = Worker(self, rank, incarnation, faults)
        for channel in worker.channels:
            self._stack.push_async_callback(channel.close)
        return worker


@pytest.fixture
async def start_servers() -> AsyncIterator[Any]:
    """Return ``start(num_servers=1, num_shards=8, ...) -> Cluster``."""
    async with AsyncExitStack() as stack:

        async def start(
            num_servers: int = 1,
            *,
            num_shards: int = 8,
            faults: FaultHook = NO_FAULTS,
            elastic: bool = False,
            dirs: CheckpointDirs | None = None,
            **of_store: Any,
        ) -> Cluster:
            cluster = Cluster(stack)
            await cluster.start(
                num_servers,
                num_shards=num_shards,
                faults=faults,
                elastic=elastic,
                dirs=dirs or CheckpointDirs.of(tempfile.gettempdir()),  # where tmp_path is
                **of_store,
            )
            return cluster

        yield start
