"""Pservers with a disk die and come back, and workers send again what they lack."""

import asyncio
import random
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.pserver.following import CLOCK, FLAT, NUM_SHARDS, ROWS, Worker, until
from typing_extensions import override

from paramfleet.transport.outbox import Outbox
from paramfleet.transport.owner import LostChangesError
from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author
from paramfleet_pserver.api.routes import OPERATIONS, Routes
from paramfleet_pserver.durability.copies.registered import Copies
from paramfleet_pserver.durability.log.core.batching import Buffer
from paramfleet_pserver.durability.log.disk import Disk
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.persistence import Persistence
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.checkpoint.manifest import (
    FilePart,
    Manifest,
    SavedTable,
    write_manifest,
    write_part,
)
from paramfleet_shared.discovery.errors import FencedError as RegistryFencedError
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors.logs import (
    LogClosedError,
    LogInUseError,
    NotDurableError,
    OtherTermError,
)
from paramfleet_shared.errors.served import NotKeptError
from paramfleet_shared.files.folders import CheckpointDirs
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.server import RpcServer
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.testing.patience import LATE_S


class HeldDisk(Disk):
    """Writes nothing while it is held, as a slow disk; a copy of it is of one moment."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.acting = threading.Lock()

    @override
    def create(self, path: Path, num_bytes: int) -> int:
        with self.acting:
            return super().create(path, num_bytes)

    @override
    def write(self, file: int, parts: Sequence[Buffer], offset: int) -> None:
        self.free.wait(LATE_S)
        with self.acting:
            super().write(file, parts, offset)

    @override
    def rename(self, path: Path, target: Path) -> None:
        with self.acting:
            super().rename(path, target)

    @override
    def remove(self, path: Path) -> None:
        with self.acting:
            super().remove(path)


class Server:
    """One index, by one process after another."""

    def __init__(
        self,
        index: int,
        folder: Path,
        num_servers: int,
        *,
        waits: bool,
        secret: JobSecret | None = None,
    ) -> None:
        self.index = index
        self.term = 0
        self.endpoint = ""
        self._folder = folder
        self._num_servers = num_servers
        self._waits = waits
        self._secret = secret

    async def start(self) -> None:
        self.term += 1
        self.disk = HeldDisk()
        self._owners = Owners(2)
        shards = Placement(endpoints=("",) * self._num_servers, num_shards=NUM_SHARDS)
        store = TableStore(
            shards=shards.shards_of(self.index), num_shards=NUM_SHARDS, num_owners=2
        )
        self._persistence = Persistence(
            self._folder / f"life{self.term}",
            job="a job",
            term=self.term,
            waits=self._waits,
            clock=CLOCK,
            settings=LogSettings(segment_bytes=1 << 14),
            disk=self.disk,
        )
        self.routes = routes = Routes(
            store,
            owners=self._owners,
            server=self.index,
            clock=CLOCK,
            dirs=CheckpointDirs.of(tempfile.gettempdir()),  # where tmp_path is
            persistence=self._persistence,
        )
        if await routes.recover():
            routes.begin_term()

        def handler(op: str) -> Any:
            return lambda request: routes.handle(op, request)

        self._server = RpcServer(
            {op: handler(op) for op in OPERATIONS},
            name=f"pserver {self.index}",
            clock=CLOCK,
            secret=self._secret,
        )
        self.endpoint = f"127.0.0.1:{await self._server.start('127.0.0.1')}"

    async def die(self) -> None:
        """End as a process that is killed: the next one has what is on the disk now."""
        target = self._folder / f"life{self.term + 1}"
        if self._persistence._saving.locked():
            self.disk.free.set()  # a snapshot waits for the log
        async with self._persistence._saving:  # a copy takes longer than a death
            with self.disk.acting:
                if self._persistence.folder.exists():
                    shutil.copytree(self._persistence.folder, target)
            for session in list(self._server._sessions):
                session.close()  # at once: who is dead reports nothing durable that came later
        await self.close()

    async def close(self) -> None:
        await self._server.close()
        self.disk.free.set()
        await self.routes.close()
        async with self._persistence._saving:  # a snapshot ends before its owners do
            await self._owners.close()


def declaration(author: Author, num_workers: int = 1, mode: str = "async") -> dict[str, Any]:
    return {
        **author.fields(),
        "tables": [ROWS.to_wire(), FLAT.to_wire()],
        "mode": mode,
        "worker_num": num_workers,
        "max_staleness": None,
        "async_rate": "full",
    }


class Job:
    """Pservers and the client's connections to them."""

    def __init__(
        self, folder: Path, *, num_servers: int, waits: bool, secret: JobSecret | None = None
    ) -> None:
        self.secret = secret
        self.servers = [
            Server(index, folder / str(index), num_servers, waits=waits, secret=secret)
            for index in range(num_servers)
        ]
        self.stack = AsyncExitStack()
        self.epoch = 0

    async def start(self) -> None:
        for server in self.servers:
            await server.start()

    def placement(self) -> Placement:
        self.epoch += 1
        return Placement(
            endpoints=tuple(server.endpoint for server in self.servers),
            num_shards=NUM_SHARDS,
            epoch=self.epoch,
            terms=tuple(server.term for server in self.servers),
        )

    async def worker(
        self,
        rank: int,
        num_workers: int = 1,
        mode: str = "async",
        *,
        declares: bool = True,
    ) -> Worker:
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
            secret=self.secret,
        )
        self.stack.push_async_callback(pservers.close)
        if declares:
            await pservers.call_all("declare", declaration(author, num_workers, mode))
        return Worker(pservers, author)

    async def return_(self, index: int) -> None:
        await self.servers[index].die()
        await self.servers[index].start()

    async def close(self) -> None:
        await self.stack.aclose()
        for server in self.servers:
            await server.close()


@pytest.fixture
async def start_job(tmp_path: Path) -> AsyncIterator[Any]:
    """Return ``start(num_servers=2, waits=False, secret=None) -> Job``."""
    async with AsyncExitStack() as stack:

        async def start(num_servers: int = 2, **of: Any) -> Job:
            job = Job(tmp_path, num_servers=num_servers, **{"waits": False, **of})
            await job.start()
            stack.push_async_callback(job.close)
            return job

        yield start


async def test_what_was_acknowledged_and_not_on_the_disk_is_sent_again(start_job: Any) -> None:
    job = await start_job()
    worker = await job.worker(0)
    await worker.push([1, 2, 3])
    await worker.pservers.settle()
    job.servers[1].disk.free.clear()
    for _ in range(5):
        await worker.push([1, 2, 3])
    assert len(worker.pservers.outbox) == 5

    await job.return_(1)

    assert await worker.pull([1, 2, 3]) == ([6.0, 6.0, 6.0], 6.0)
    await worker.pservers.settle()
    assert len(worker.pservers.outbox) == 0
    assert worker.pservers.outbox.num_bytes == 0


async def test_a_worker_reads_what_it_has_written_from_the_next_process(start_job: Any) -> None:
    job = await start_job()
    worker = await job.worker(0)
    for server in job.servers:
        server.disk.free.clear()
    await worker.push([1, 2, 3])
    for index in (0, 1):
        await job.return_(index)

    pulls = [worker.pull([1, 2, 3]) for _ in range(8)]

    assert await asyncio.gather(*pulls) == [([1.0, 1.0, 1.0], 1.0)] * 8


async def test_a_process_that_was_replaced_while_it_served_is_left_for_the_next(
    start_job: Any,
) -> None:
    """What waits there for other workers is answered with why it ends."""
    job = await start_job()
    ada, bob = [await job.worker(rank, 2, "sync") for rank in (0, 1)]
    await ada.push([1, 2, 3])
    await ada.pservers.settle()

    async with asyncio.TaskGroup() as tasks:
        pulled = tasks.create_task(ada.pull([1, 2, 3], min_step=1))
        await asyncio.sleep(0.05)
        for server in job.servers:
            facts = {"role": "pserver", "index": server.index, "incarnation": 1, "newest": 2}
            server.routes.fail(RegistryFencedError(**facts))
        await asyncio.sleep(0.05)
        assert not pulled.done()
        for index in (0, 1):
            await job.return_(index)
        await bob.push([1, 2, 3])

    assert pulled.result() == ([1.0, 1.0, 1.0], 1.0)


async def test_another_program_at_the_port_of_a_dead_process_is_no_end(start_job: Any) -> None:
    """It doesn't know the job's secret, or is no pserver at all."""
    secret = JobSecret("s" * 32, job="a job")
    job = await start_job(secret=secret)
    worker = await job.worker(0)
    await worker.push([1, 2, 3])
    await worker.pservers.settle()
    server = job.servers[1]
    port = int(server.endpoint.rpartition(":")[2])
    await server.die()
    other = JobSecret("o" * 32, job="another job")
    stranger = RpcServer({}, name="a stranger", clock=CLOCK, secret=other)
    await stranger.start("127.0.0.1", port)

    async with asyncio.TaskGroup() as tasks:
        pulled = tasks.create_task(worker.pull([1, 2, 3]))
        await asyncio.sleep(0.05)
        assert not pulled.done()
        await server.start()
    await stranger.close()

    assert pulled.result() == ([1.0, 1.0, 1.0], 1.0)


async def test_a_full_outbox_makes_a_change_wait_for_the_disks(start_job: Any) -> None:
    job = await start_job()
    worker = await job.worker(0)
    worker.pservers.outbox = Outbox(worker.pservers.placement, max_entries=3)
    for owner in worker.pservers._owners:
        owner._outbox = worker.pservers.outbox
    worker.pservers.outbox.is_on = True
    job.servers[0].disk.free.clear()
    for _ in range(3):
        await worker.push([1])

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(worker.push([1]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        job.servers[0].disk.free.set()

    assert await worker.pull([1]) == ([4.0], 4.0)


async def test_a_change_that_waits_for_room_ends_though_a_later_one_is_sent_before_it(
    start_job: Any,
) -> None:
    job = await start_job()
    worker = await job.worker(0)
    outbox = worker.pservers.outbox = Outbox(worker.pservers.placement, max_entries=3)
    for owner in worker.pservers._owners:
        owner._outbox = outbox
    outbox.is_on = True
    job.servers[0].disk.free.clear()
    for _ in range(3):
        await worker.push([1])

    async with asyncio.timeout(LATE_S), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(worker.push([1]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        job.servers[0].disk.free.set()
        while outbox.is_full:  # noqa: ASYNC110 - the first turn of the loop counts
            await asyncio.sleep(0)
        await worker.push([1])  # until the former is there, no later one is durable

    assert await worker.pull([1]) == ([5.0], 5.0)


async def test_a_server_that_comes_back_with_less_than_it_reported_is_refused(
    start_job: Any, tmp_path: Path
) -> None:
    job = await start_job(1)
    worker = await job.worker(0)
    older = tmp_path / "older"
    shutil.copytree(tmp_path / "0" / "life1", older)
    for _ in range(3):
        await worker.push([1])
    await worker.pservers.settle()
    await worker.push([1])
    await job.servers[0].die()
    shutil.rmtree(tmp_path / "0" / "life2")
    shutil.copytree(older, tmp_path / "0" / "life2")
    await job.servers[0].start()

    with pytest.raises(LostChangesError, match="older copy"):
        await worker.pull([1])


async def test_a_change_is_answered_when_it_is_on_the_disk_if_it_is_to_be(
    start_job: Any,
) -> None:
    job = await start_job(1, waits=True)
    worker = await job.worker(0)
    await worker.push([1])
    assert len(worker.pservers.outbox) == 0
    job.servers[0].disk.free.clear()

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(worker.push([1]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        job.servers[0].disk.free.set()


async def test_a_deadline_ends_the_wait_for_the_disk_by_name(start_job: Any) -> None:
    job = await start_job(1)
    worker = await job.worker(0)
    job.servers[0].disk.free.clear()
    await worker.push([1])
    channel = Channel(job.servers[0].endpoint, peer="pserver 0", clock=CLOCK)

    with pytest.raises(NotDurableError, match="settle was executed"):
        await channel.call(
            "settle", Message(fields={"rank": 0, "incarnation": 1}), timeout_s=0.3
        )
    await channel.close()


async def test_sums_of_a_step_are_refused_by_name_as_they_are_not_kept(start_job: Any) -> None:
    job = await start_job(1)
    channel = Channel(job.servers[0].endpoint, peer="pserver 0", clock=CLOCK)
    fields = {
        "rank": 0,
        "incarnation": 1,
        "tables": [FLAT.to_wire()],
        "mode": "sync",
        "worker_num": 1,
        "max_staleness": None,
        "sync_batch_norm": True,
    }

    with pytest.raises(NotKeptError, match="sync_batch_norm"):
        await channel.call("declare", Message(fields=fields), timeout_s=LATE_S)
    await channel.close()


@pytest.mark.parametrize("wanted", [[0, 2], [1, 1], [0, 0]])
async def test_a_request_for_another_process_is_refused(
    start_job: Any, wanted: list[int]
) -> None:
    job = await start_job(1)
    await job.worker(0)
    channel = Channel(job.servers[0].endpoint, peer="pserver 0", clock=CLOCK)

    with pytest.raises(OtherTermError) as refused:
        await channel.call("status", Message(fields={"for_server": wanted}), timeout_s=LATE_S)
    assert refused.value.facts["wanted"] == wanted
    await channel.close()


@pytest.mark.parametrize("wanted", [[0.0, 1.0], [0, 1.0], [False, 1], [0], {}, 0, "01"])
async def test_an_address_is_two_whole_numbers(start_job: Any, wanted: Any) -> None:
    job = await start_job(1)
    await job.worker(0)
    channel = Channel(job.servers[0].endpoint, peer="pserver 0", clock=CLOCK)

    with pytest.raises(MalformedMessageError, match="an index and an incarnation"):
        await channel.call("status", Message(fields={"for_server": wanted}), timeout_s=LATE_S)
    await channel.close()


async def test_two_processes_cannot_have_one_folder(start_job: Any, tmp_path: Path) -> None:
    job = await start_job(1)
    await job.worker(0)
    owners = Owners(2)
    store = TableStore(shards=range(NUM_SHARDS), num_shards=NUM_SHARDS, num_owners=2)
    second = Persistence(
        tmp_path / "0" / "life1", job="a job", term=2, waits=False, clock=CLOCK
    )

    with pytest.raises(LogInUseError):
        await second.recover(
            store, owners, copies=lambda: Copies(replicated=False, has_disk=True)
        )
    await owners.close()


async def test_a_snapshot_takes_the_place_of_the_log_before_it(
    start_job: Any, tmp_path: Path
) -> None:
    job = await start_job(1)
    worker = await job.worker(0)
    rows = list(range(64))
    for _ in range(100):
        await worker.push(rows)
    await worker.pservers.settle()
    assert len(segments(tmp_path)) > 2

    snapshot = await job.servers[0].routes.take_snapshot()
    assert snapshot is not None
    await worker.push(rows)
    assert await job.servers[0].routes.take_snapshot() is None
    await worker.pservers.settle()

    await until(lambda: len(segments(tmp_path)) <= 2)  # a thread removes them
    await job.return_(0)
    assert await worker.pull(rows) == ([101.0] * 64, 101.0)
    log = job.servers[0].routes.log_facts()
    assert log is not None
    assert log["snapshot_position"] == snapshot.position


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "0" / "life1" / "log").glob("segment-*.log"))


def saved(folder: Path, value: float) -> str:
    """Write a checkpoint of the dense table; return its folder."""
    folder.mkdir()
    values = np.full(FLAT.size, value, np.float32)
    part = FilePart(values=values, states=np.empty((0, FLAT.size), np.float32))
    file = write_part(folder, "flat.safetensors", FLAT, part)
    write_manifest(folder, Manifest(tables=(SavedTable(spec=FLAT, version=1),), files=(file,)))
    return str(folder)


async def test_a_load_is_kept_by_a_snapshot_and_what_follows_with_it(
    start_job: Any, tmp_path: Path
) -> None:
    job = await start_job(1)
    worker = await job.worker(0)
    await worker.push([1])
    await worker.pservers.settle()
    routes = job.servers[0].routes
    folder = saved(tmp_path / "saved", 100.0)
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(
            worker.pservers.call_all(
                "load", {**worker._author.fields(), "dirname": folder}, timeout_s=LATE_S
            )
        )
        await asyncio.wait_for(routes._training.journal.snapshot_wanted.wait(), LATE_S)
        await worker.push([1])
        assert not loading.done()
        assert len(worker.pservers.outbox) == 1
        assert await routes.take_snapshot() is not None

    await worker.pservers.settle()
    await job.return_(0)
    assert await worker.pull([1]) == ([2.0], 101.0)


async def test_a_load_that_no_snapshot_has_is_done_again_with_what_followed(
    start_job: Any, tmp_path: Path
) -> None:
    job = await start_job(1)
    worker = await job.worker(0)
    await worker.push([1])
    folder = saved(tmp_path / "saved", 100.0)
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(
            worker.pservers.call_all(
                "load", {**worker._author.fields(), "dirname": folder}, timeout_s=LATE_S
            )
        )
        journal = job.servers[0].routes._training.journal
        await asyncio.wait_for(journal.snapshot_wanted.wait(), LATE_S)
        await worker.push([1])
        await job.return_(0)
        journal = job.servers[0].routes._training.journal
        for _ in range(2):  # of the gap that was in the log, and of the load that comes again
            wanted = tasks.create_task(journal.snapshot_wanted.wait())
            await asyncio.wait({wanted, loading}, return_when=asyncio.FIRST_COMPLETED)
            await job.servers[0].routes.take_snapshot()
            wanted.cancel()

    await worker.pservers.settle()
    await job.return_(0)
    assert await worker.pull([1]) == ([2.0], 100.0)


async def test_who_declares_after_a_recovery_is_answered_what_was_loaded(
    start_job: Any, tmp_path: Path
) -> None:
    job = await start_job(1)
    folder = saved(tmp_path / "saved", 100.0)
    await job.servers[0].routes.load_from(Path(folder))
    worker = await job.worker(0)
    fields = declaration(worker._author)
    (before,) = await worker.pservers.call_all("declare", fields)
    await worker.push([1])
    await worker.pservers.settle()

    await job.return_(0)

    (after,) = await worker.pservers.call_all("declare", fields)
    assert after.fields["folder"] == before.fields["folder"] == folder
    assert after.fields["manifest"] == before.fields["manifest"] != ""


async def behind(start_job: Any) -> tuple[Job, list[Worker]]:
    """Return a job of sync whose pserver lacks a step that its workers have taken."""
    job = await start_job(1)
    workers = [await job.worker(rank, 2, "sync") for rank in (0, 1)]
    for worker in workers:
        await worker.push([1])
    for worker in workers:
        await worker.pservers.settle()
    job.servers[0].disk.free.clear()
    for worker in workers:
        await worker.push([1])
    await job.return_(0)
    return job, workers


async def test_a_save_of_sync_waits_for_the_steps_that_come_again(
    start_job: Any, tmp_path: Path
) -> None:
    _, (saver, other) = await behind(start_job)
    (tmp_path / "saved").mkdir()
    folder = str(tmp_path / "saved")
    fields = {**saver._author.fields(), "dirname": folder, "min_version": 2}
    async with asyncio.TaskGroup() as tasks:
        saving = tasks.create_task(saver.pservers.call_all("save", fields, timeout_s=LATE_S))
        await asyncio.sleep(0.1)
        assert not saving.done()
        await other.pull([1])

    assert saving.result()[0].fields["steps"] == [2, 2]


async def test_a_removal_of_sync_waits_for_the_steps_that_come_again(start_job: Any) -> None:
    _, (remover, other) = await behind(start_job)
    fields = {**remover._author.change(), "table": "rows", "step": 2}
    routed = partition(np.array([1], np.int64), NUM_SHARDS)
    tensors = {"0.ids": routed.ids, "0.offsets": routed.offsets}
    async with asyncio.TaskGroup() as tasks:
        removing = tasks.create_task(
            remover.pservers.change("remove", [Message(fields=fields, tensors=tensors)])
        )
        await asyncio.sleep(0.1)
        assert not removing.done()
        await other.pull([1])

    assert removing.result()[0].fields["removed"] == 1


async def test_a_pserver_that_died_before_its_training_began_is_no_failure(
    start_job: Any,
) -> None:
    job = await start_job(2)
    worker = await job.worker(0)
    fresh = await job.worker(0, declares=False)
    fresh.pservers.outbox.is_on = True  # as when one of the pservers has answered
    await worker.pservers.settle()
    shutil.rmtree(job.servers[1]._persistence.folder)
    await job.return_(1)

    fresh.pservers.follow(job.placement())

    await asyncio.wait_for(fresh.pservers.call_all("status", {}), LATE_S)


async def test_a_pserver_that_died_before_it_knew_an_elastic_worker_is_no_failure(
    start_job: Any,
) -> None:
    job = await start_job(2)
    worker = await job.worker(0, 2)
    fresh = await job.worker(1, 2, declares=False)
    fresh.pservers.outbox.is_on = True  # as when one of the pservers has answered
    await worker.pservers.settle()  # the disk has worker 0, and not worker 1
    await job.return_(1)
    job.servers[1].routes._elastic = True

    fresh.pservers.follow(job.placement())

    await asyncio.wait_for(fresh.pservers.call_all("status", {}), LATE_S)


async def take_snapshot(server: Server) -> None:
    """Begin a snapshot; the server may die before it is there."""
    assert server.routes._training is not None
    assert server.routes._training.journal is not None
    server.routes._training.journal.snapshot_wanted.set()
    with suppress(LogClosedError, FileNotFoundError):
        await server.routes.take_snapshot()


@pytest.mark.parametrize("seed", range(12))
async def test_any_deaths_lose_nothing_and_double_nothing(start_job: Any, seed: int) -> None:
    chance = random.Random(seed)
    job = await start_job(chance.choice([1, 2, 3]))
    workers = [await job.worker(rank, 2) for rank in (0, 1)]
    counts = [0, 0]

    async def train(rank: int) -> None:
        while not is_over:
            await workers[rank].push([1, 2, 1000 + rank])
            counts[rank] += 1
            await asyncio.sleep(0)

    is_over = False
    async with asyncio.TaskGroup() as tasks:
        for rank in (0, 1):
            tasks.create_task(train(rank))
        for _ in range(6):
            await asyncio.sleep(chance.random() / 20)
            if chance.random() < 0.5:
                tasks.create_task(take_snapshot(chance.choice(job.servers)))
                await asyncio.sleep(chance.random() / 200)
            server = chance.choice(job.servers)
            if chance.random() < 0.5:
                server.disk.free.clear()
                await asyncio.sleep(chance.random() / 50)
            await job.return_(server.index)
        is_over = True
    for worker in workers:
        await worker.pservers.settle()

    total = float(sum(counts))
    wanted = ([total, total, float(counts[0]), float(counts[1])], total)
    assert await workers[0].pull([1, 2, 1000, 1001]) == wanted
    assert min(counts) > 0
