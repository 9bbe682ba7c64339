"""What of a GEO worker that died together with a pserver stays in another worker's copy."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.pserver.following import CLOCK, NUM_SHARDS, until
from tests.integration.pserver.test_returning import Job as Pservers

import paramfleet as fleet
from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.row_store import spec_of
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.job import Job, declare
from paramfleet.training.modes.base import collect_tables
from paramfleet.training.modes.geo.counted import CountedReplica, added_by
from paramfleet.training.modes.geo.mode import GeoMode
from paramfleet.training.modes.geo.rows import _pulled
from paramfleet.transport.answering import Answering
from paramfleet.transport.communicator import Communicator
from paramfleet.transport.leaving import Departure
from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.testing.patience import LATE_S

DIM = 4
MODE = TrainingMode(name="geo", k_steps=1, geo_merge="remainder")


class GeoWorker:
    """The mode of one worker; its methods block, so they are called in a thread."""

    def __init__(self, pservers: Pservers, rank: int, **options: Any) -> None:
        self._communicator = Communicator()
        self._communicator.start()
        author = Author(rank=rank, incarnation=1)
        self._pservers = self._communicator.wait(self._connected(pservers, author))
        departure = Departure()
        job = Job(
            communicator=self._communicator,
            pservers=self._pservers,
            author=author,
            worker_num=2,
            host="127.0.0.1",
            times=StepTimes(CLOCK.monotonic),
            departure=departure,
            answering=Answering(self._communicator, self._pservers, author, departure),
        )
        self._job = job
        embedding = fleet.nn.Embedding(0, DIM, name="rows", **options)
        optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
        tables = collect_tables(optimizer)
        self._mode = GeoMode(job, MODE, optimizer, tables)
        ((table, _),) = tables.sparse
        declare(job, [spec_of(table, rule=added_by(table), num_shards=NUM_SHARDS)], MODE)
        self._replica = self._mode._rows["rows"]

    async def _connected(self, pservers: Pservers, author: Author) -> PServers:
        async def locate() -> Any:
            return pservers.placement()

        return PServers(
            pservers.placement(),
            author=author,
            locate=locate,
            clock=CLOCK,
            call_timeout_s=LATE_S,
            step_timeout_s=LATE_S,
        )

    def exchange(self, ids: Sequence[int] = ()) -> None:
        """Move rows by two, and exchange: a half is sent by each of two workers."""
        store = self._replica.store
        slots = store.slots(np.array(ids, np.int64))
        store.values[slots] += 2.0
        self._replica.touch(slots)
        self._mode.flush()

    def settle(self) -> None:
        self._communicator.wait(self._pservers.settle())

    def progress(self, ids: Sequence[int]) -> list[float]:
        """Return by how much rows differ from their first values."""
        store = self._replica.store
        held = store.held(np.array(ids, np.int64))
        assert (held >= 0).all()
        moved = store.values[held] - initial_rows(store.spec, np.array(ids, np.int64))
        return [round(float(one), 4) for one in moved[:, 0]]

    def values(self, ids: Sequence[int]) -> Any:
        store = self._replica.store
        return store.values[store.held(np.array(ids, np.int64))]

    def shows(self, ids: Sequence[int]) -> list[float]:
        counts: list[float] = self.values(ids)[:, 0].tolist()
        return counts

    def has_grown(self, ids: Sequence[int]) -> bool:
        assert isinstance(self._replica, CountedReplica)
        return bool(self._replica.has_grown(np.array(ids, np.int64)).all())

    def served(self, ids: Sequence[int]) -> Any:
        """Return what the pservers have of rows, with what their copies need."""
        rows = np.array(ids, np.int64)
        pulled = _pulled(self._job, self._replica, rows, len(rows))
        return np.concatenate([some for _, some in pulled])

    def close(self) -> None:
        self._communicator.wait(self._pservers.close())
        self._communicator.close()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Return ``start(num_servers, **options of the rows) -> (pservers, two workers)``."""
    async with AsyncExitStack() as stack:

        async def start(
            num_servers: int, **options: Any
        ) -> tuple[Pservers, GeoWorker, GeoWorker]:
            pservers = Pservers(tmp_path, num_servers=num_servers, waits=False)
            await pservers.start()
            stack.push_async_callback(pservers.close)
            workers = []
            for rank in range(2):
                made = partial(GeoWorker, pservers, rank, **options)
                worker = await asyncio.to_thread(made)
                stack.push_async_callback(asyncio.to_thread, worker.close)
                workers.append(worker)
            return pservers, workers[0], workers[1]

        yield start


@pytest.mark.parametrize("num_servers", [1, 2])
async def test_a_row_of_a_worker_that_died_with_the_pserver_goes_from_other_copies(
    start: Callable[..., Any], num_servers: int
) -> None:
    pservers, ada, bob = await start(num_servers)
    ids = list(range(20))
    lost = list(range(100, 120))
    await asyncio.to_thread(ada.exchange, ids)
    await asyncio.to_thread(ada.settle)
    for server in pservers.servers:
        server.disk.free.clear()
    await asyncio.to_thread(bob.exchange, [*ids, *lost])
    await asyncio.to_thread(ada.exchange)
    assert ada.progress(lost) == [1.0] * len(lost)  # it was received, and isn't durable

    for index in range(num_servers):  # and nobody hears of its worker any more
        await pservers.return_(index)
    await asyncio.to_thread(ada.exchange, ids)

    assert ada.progress(lost) == [0.0] * len(lost)
    # ada's own: 2 each time, of which a half was sent each time, and the rest is to come
    assert ada.progress(ids) == [4.0] * len(ids)


async def test_progress_of_ones_own_in_such_a_row_stays(start: Callable[..., Any]) -> None:
    pservers, ada, bob = await start(1)
    await asyncio.to_thread(ada.exchange, [1])
    await asyncio.to_thread(ada.settle)
    pservers.servers[0].disk.free.clear()
    await asyncio.to_thread(bob.exchange, [7])
    await asyncio.to_thread(ada.exchange)
    assert ada.progress([7]) == [1.0]

    await pservers.return_(0)
    await asyncio.to_thread(ada.exchange, [7])  # it makes the row anew

    assert ada.progress([7]) == [2.0]


async def test_counts_of_such_a_worker_go_and_a_row_has_its_embedx_anew(
    start: Callable[..., Any],
) -> None:
    accessor = fleet.nn.CtrAccessor(embedx_threshold=3.0, nonclk_coeff=1.0)
    pservers, ada, bob = await start(1, accessor=accessor)
    await asyncio.to_thread(ada.exchange, [1])  # by two in each column
    await asyncio.to_thread(ada.settle)
    pservers.servers[0].disk.free.clear()
    for _ in range(2):
        await asyncio.to_thread(bob.exchange, [1, 7])
    await asyncio.to_thread(ada.exchange)
    assert ada.shows([1, 7]) == [6.0, 4.0]
    assert ada.has_grown([1, 7])

    await pservers.return_(0)
    await asyncio.to_thread(ada.exchange, [7])

    assert ada.shows([1, 7]) == [2.0, 2.0]
    assert ada.has_grown([1, 7])
    drawn = await asyncio.to_thread(ada.served, [7])
    assert drawn[:, -1].tolist() == [1.0], "a worker's copy has it: so has the pserver's row"
    await asyncio.to_thread(ada.exchange)
    unsent = ada.values([7]) - drawn[:, :-2]
    np.testing.assert_allclose(unsent, [[0, 0, 1, 1, 1, 1]], rtol=1e-6)  # a half, but of counts


async def test_nothing_is_read_anew_while_a_pserver_goes_on(
    start: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pservers, ada, bob = await start(1)
    await asyncio.to_thread(bob.exchange, [1, 2])
    await asyncio.to_thread(ada.exchange, [2, 3])
    await asyncio.to_thread(ada.settle)
    await asyncio.to_thread(bob.settle)

    def read_anew() -> list[int]:
        return [
            record.__dict__["rows"]
            for record in caplog.records
            if record.getMessage() == "worker.rows_read_anew"
        ]

    assert read_anew() == []
    await pservers.return_(0)
    await asyncio.to_thread(ada.exchange)
    await until(lambda: ada.progress([1, 2, 3]) == [1.0, 3.0, 2.0])
    assert read_anew() == []  # all came
