"""Groups that are followed, and go from one process to another; and workers that train on."""

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tests.unit.pserver.commands.histories import state_of

from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author, Read, ReadPlan, Write, write_messages
from paramfleet_pserver.api.routes import OPERATIONS, Routes
from paramfleet_pserver.durability.copies.registered import DISK
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.persistence import Persistence
from paramfleet_pserver.following.follower import GroupFollower
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.files.folders import CheckpointDirs
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.faults import NO_FAULTS, FaultHook
from paramfleet_shared.net.rpc.server import Request, RpcServer
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.testing.patience import LATE_S

CLOCK = SystemClock()
NUM_SHARDS = 8
SUM = OptimizerSpec(rule="sum")
ROWS = TableSpec(
    name="rows", kind="sparse", dim=4, optimizer=SUM, initializer=InitializerSpec()
)
FLAT = TableSpec(name="flat", kind="dense", size=16, optimizer=SUM)

Faults = Callable[[str], FaultHook]


class Record:
    """What the registry has of one group."""

    def __init__(self) -> None:
        self.term = 0
        self.endpoint = ""
        self.eligible: frozenset[str] = frozenset()

        self.written = (0, 0)

    def set_eligible(self, term: int, number: int, ids: frozenset[str]) -> bool:
        if term != self.term or (term, number) < self.written:
            return False
        self.written, self.eligible = (term, number), ids
        return True


class Host:
    """A process's part in one group: it follows, and then owns it, or owns it at once."""

    def __init__(self, group: "Group", name: str, folder: Path | None, **of: Any) -> None:
        self.group = group
        self.name = name
        self.folder = folder
        self.of = of
        self.term = 0
        self.endpoint = ""
        self.routes: Routes | None = None
        self.follower: GroupFollower | None = None
        self.following: asyncio.Task[None] | None = None
        self.owners = Owners(2)
        self.store = group.new_store()
        self._opened = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._server = RpcServer(
            {operation: self._handler(operation) for operation in OPERATIONS},
            name=f"pserver {self.group.number}",
            clock=CLOCK,
        )
        self.endpoint = f"127.0.0.1:{await self._server.start('127.0.0.1')}"

    def _handler(self, operation: str) -> Any:
        async def handle(request: Request) -> Message:
            await self._opened.wait()
            assert self.routes is not None
            reply = self.routes.handle(operation, request)
            return reply if isinstance(reply, Message) else await reply

        return handle

    async def own(
        self, term: int, *, goes_on: bool = False, succeeds: int | None = None
    ) -> None:
        """Be the owner: of a new group, or of what this has followed."""
        promoted = None
        inherited = self.group.record.eligible
        if goes_on:
            assert self.follower is not None
            promoted = await self.follower.promote(succeeds=succeeds)
        persistence = None
        if self.folder is not None:
            persistence = Persistence(
                self.folder,
                job="a job",
                term=term,
                waits=False,
                clock=CLOCK,
                settings=LogSettings(segment_bytes=1 << 14),
            )
        self.term = term
        self.routes = Routes(
            self.store,
            owners=self.owners,
            server=self.group.number,
            clock=CLOCK,
            dirs=CheckpointDirs.of(tempfile.gettempdir()),  # where tmp_path is
            persistence=persistence,
            term=term,
            **self.of,
        )
        if promoted is not None:
            self.routes.go_on(promoted)
            self.routes.followers.inherit(inherited)
        elif persistence is not None and await self.routes.recover():
            self.routes.begin_term()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._reconcile()))
        if persistence is not None:
            self._tasks.append(loop.create_task(self._take_snapshots()))
        self._opened.set()

    async def follow(self, purpose: Any) -> None:
        """Follow the group's owner."""
        record = self.group.record
        channel = Channel(
            record.endpoint,
            peer=f"pserver {self.group.number}",
            clock=CLOCK,
            faults=self.group.faults(self.name),
        )
        self.follower = GroupFollower(
            self.group.number,
            term=record.term,
            channel=channel,
            follower=self.name,
            purpose=purpose,
            store=self.store,
            owners=self.owners,
            clock=CLOCK,
        )
        self.following = asyncio.get_running_loop().create_task(self.follower.run())

    async def die(self) -> None:
        """End as a process that is killed."""
        await self._server.close()
        for task in self._tasks:
            task.cancel()
        if self.following is not None:
            self.following.cancel()
            await asyncio.wait((self.following,))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.follower is not None:
            await self.follower.close()
        if self.routes is not None:
            await self.routes.close()
        await self.owners.close()

    async def _reconcile(self) -> None:
        assert self.routes is not None
        followers, record = self.routes.followers, self.group.record
        while True:
            proposal = followers.proposal()
            if proposal is not None and record.set_eligible(self.routes.term, *proposal):
                followers.written(proposal.number)
            await followers.changed(0.02)

    async def _take_snapshots(self) -> None:
        assert self.routes is not None
        while True:
            await self.routes.take_snapshot()
            await asyncio.sleep(0.02)

    @property
    def is_protected(self) -> bool:
        """Return whether the registry names a copy of what is owned here."""
        assert self.routes is not None
        journal = self.routes._journal
        return journal is None or not journal.copies.has_inherited

    def digest_parts(self) -> list[Any]:
        training = self.routes._training if self.routes is not None else None
        machine = self.follower._machine if training is None else training.machine  # type: ignore[union-attr]
        assert machine is not None
        return list(state_of(machine, same_owners=True))


class Group:
    """One group, from process to process."""

    def __init__(
        self, number: int, num_groups: int, folder: Path | None, faults: Faults, **of: Any
    ) -> None:
        self.number = number
        self.record = Record()
        self.faults = faults
        self._num_groups = num_groups
        self._folder = folder
        self._of = of
        self._numbers = itertools.count(1)
        self.hosts: list[Host] = []

    def new_store(self) -> TableStore:
        anywhere = Placement(endpoints=("",) * self._num_groups, num_shards=NUM_SHARDS)
        return TableStore(
            shards=anywhere.shards_of(self.number), num_shards=NUM_SHARDS, num_owners=2
        )

    @property
    def owner(self) -> Host:
        return next(host for host in self.hosts if host.endpoint == self.record.endpoint)

    async def add(self) -> Host:
        name = f"{self.number}.{next(self._numbers)}"
        folder = None if self._folder is None else self._folder / name
        host = Host(self, name, folder, **self._of)
        await host.start()
        self.hosts.append(host)
        return host

    async def start(self) -> None:
        host = await self.add()
        self._publish(host, 1)
        if host.folder is not None:
            self.record.eligible = frozenset({DISK})
        await host.own(1)

    def _publish(self, host: Host, term: int) -> None:
        self.record.term, self.record.endpoint = term, host.endpoint

    async def replicate(self) -> Host:
        """Have another process follow, and return when the registry names it."""
        host = await self.add()
        await host.follow("replica")
        await until(lambda: host.name in self.record.eligible)
        return host

    async def lose_owner(self) -> Host:
        """Kill the owner, and let a follower that the registry names take over."""
        owner = self.owner
        self.hosts.remove(owner)
        await owner.die()
        heir = next(host for host in self.hosts if host.name in self.record.eligible)
        self._publish(heir, self.record.term + 1)
        await heir.own(self.record.term, goes_on=True)
        return heir

    async def move(self) -> float:
        """Let another process become the owner; return for how long nobody was."""
        owner, host = self.owner, await self.add()
        assert owner.routes is not None
        await host.follow("move")
        assert host.follower is not None
        follower = host.follower
        await until(lambda: follower.is_whole and not follower.lag)
        began = CLOCK.monotonic()
        fenced = await follower.hand_over(timeout_s=LATE_S)
        assert fenced == self.record.term
        self._publish(host, self.record.term + 1)
        await host.own(self.record.term, goes_on=True, succeeds=fenced)
        took_s = CLOCK.monotonic() - began
        owner.routes.give_up()
        self.hosts.remove(owner)
        await owner.die()
        return took_s

    async def move_in_vain(self, *, owner_dies: bool) -> None:
        """Let another process fence the owner, and die then, alone or with the owner."""
        owner, host = self.owner, await self.add()
        assert owner.routes is not None
        await host.follow("move")
        assert host.follower is not None
        follower = host.follower
        await until(lambda: follower.is_whole and not follower.lag)
        await follower.hand_over(timeout_s=LATE_S)
        self.hosts.remove(host)
        await host.die()
        if owner_dies:
            await self.lose_owner()
            return
        self._publish(owner, self.record.term + 1)
        owner.routes.unfence(self.record.term)
        owner.routes.followers.forget(host.name)

    async def lose_follower(self) -> None:
        """Kill a follower that the registry names; the owner gets to know it."""
        owner = self.owner
        assert owner.routes is not None
        host = next(host for host in self.hosts if host.name in self.record.eligible)
        self.hosts.remove(host)
        await host.die()
        owner.routes.followers.forget(host.name)
        await until(lambda: host.name not in self.record.eligible)

    async def close(self) -> None:
        for host in self.hosts:
            await host.die()


class Job:
    """Groups, and workers that know where they are."""

    def __init__(
        self,
        num_groups: int,
        folder: Path | None = None,
        *,
        faults: Faults = lambda _: NO_FAULTS,
        **of: Any,
    ) -> None:
        self.groups = [
            Group(number, num_groups, folder, faults, **of) for number in range(num_groups)
        ]
        self.stack = AsyncExitStack()
        self.faults = faults
        self.epoch = 0

    async def start(self) -> None:
        for group in self.groups:
            await group.start()

    async def replicate(self) -> None:
        for group in self.groups:
            await group.replicate()

    def placement(self) -> Placement:
        self.epoch += 1
        return Placement(
            endpoints=tuple(group.record.endpoint for group in self.groups),
            num_shards=NUM_SHARDS,
            epoch=self.epoch,
            terms=tuple(group.record.term for group in self.groups),
        )

    async def worker(
        self, rank: int, num_workers: int = 1, mode: str = "async", **terms: Any
    ) -> "Worker":
        async def locate() -> Placement:
            return self.placement()

        author = Author(rank=rank, incarnation=1)
        pservers = PServers(
            self.placement(),
            author=author,
            locate=locate,
            clock=CLOCK,
            call_timeout_s=LATE_S,
            step_timeout_s=LATE_S,
            faults=lambda server: self.faults(f"worker {rank}, {server}"),
        )
        self.stack.push_async_callback(pservers.close)
        fields = {
            **author.fields(),
            "tables": [ROWS.to_wire(), FLAT.to_wire()],
            "mode": mode,
            "worker_num": num_workers,
            "max_staleness": None,
            "async_rate": "full",
            **terms,
        }
        await pservers.call_all("declare", fields, timeout_s=LATE_S)
        return Worker(pservers, author, mode)

    async def close(self) -> None:
        await self.stack.aclose()
        for group in self.groups:
            await group.close()


class Worker:
    """Adds ones, and counts them."""

    def __init__(self, pservers: PServers, author: Author, mode: str = "async") -> None:
        self.pservers = pservers
        self.mode = mode
        self._author = author
        self.step = 0

    async def push(self, ids: Sequence[int]) -> None:
        routed = partition(np.array(ids, np.int64), NUM_SHARDS)
        rows = RowIds(routed.ids, routed.offsets)
        values = np.ones((len(rows.ids), ROWS.dim), np.float32)
        dense = np.ones(FLAT.size, np.float32)
        writes = [
            Write(table="rows", values=values, rows=rows, lr=1.0),
            Write(table="flat", values=dense, lr=1.0),
        ]
        fields = {**self._author.change(), "step": self.step, "weight": 1.0}
        is_exchange = self.mode in {"geo", "localsgd"}
        op, name = ("exchange", "deltas") if is_exchange else ("push", "grads")
        asks = {"ack": 0, "max_rows": 1 << 20} if is_exchange else {}
        messages = write_messages(
            writes,
            self.pservers.placement,
            fields,
            values_name=name,
            part_fields=lambda _server, _write: asks,
        )
        self.step += 1
        await self.pservers.change(op, messages, rows=[rows, None])
        values[:] = dense[:] = 7e7  # a caller uses its arrays again

    async def pull(self, ids: Sequence[int], min_step: int = 0) -> tuple[list[float], float]:
        """Return the value of each row, and that of the dense table."""
        routed = partition(np.array(ids, np.int64), NUM_SHARDS)
        rows = RowIds(routed.ids, routed.offsets)
        reads = [
            Read(table="rows", rows=rows, dim=ROWS.dim, create=True),
            Read(table="flat", size=FLAT.size),
        ]
        plan = ReadPlan(reads, self.pservers.placement)
        answers = await self.pservers.pull(plan, rank=self._author.rank, min_step=min_step)
        found, flat = plan.join(answers)
        assert len(set(flat.tolist())) == 1
        assert (found == found[:, :1]).all()
        return found[routed.inverse, 0].tolist(), float(flat[0])


async def until(holds: Callable[[], Any]) -> None:
    """Return when a condition holds."""
    async with asyncio.timeout(LATE_S):
        while not holds():  # noqa: ASYNC110 -- of states that nothing announces
            await asyncio.sleep(0.005)
