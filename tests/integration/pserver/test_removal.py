"""Rows are removed while GEO's workers train copies of them: all agree at the end."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet.tables.replica import RowReplica
from paramfleet.tables.row_store import RowStore
from paramfleet.training.modes.geo.exchange_rows import received_ids, removed_ids
from paramfleet_pserver.api.answers import described
from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.records import Exchange, Leave, Make, Remove
from paramfleet_pserver.commands.terms import Terms
from paramfleet_pserver.requests.checked import exchange_request
from paramfleet_pserver.requests.row_requests import remove_request
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIM, SHARDS = 2, 8
SPEC = TableSpec(
    name="rows",
    kind="sparse",
    dim=DIM,
    num_shards=SHARDS,
    initializer=InitializerSpec(kind="uniform", low=-1.0, high=1.0),
    optimizer=OptimizerSpec(rule="sum"),
)


class Server:
    """A pserver's state, and the owners of its rows."""

    def __init__(self) -> None:
        self.owners = Owners(2)
        self.store = TableStore(shards=range(SHARDS), num_shards=SHARDS, num_owners=2)
        terms = Terms(
            mode="geo",
            worker_num=2,
            max_staleness=None,
            async_rate="full",
            sync_batch_norm=False,
        )
        self.machine = Machine(terms, elastic=False, store=self.store, owners=self.owners)
        self.machine.execute(Make((SPEC,)))
        table = self.store.find("rows")
        assert isinstance(table, SparseTable)
        self.table = table
        self._sequences = Counter[int]()

    def name(self, rank: int) -> dict[str, Any]:
        """Return the header's part of a worker's next change."""
        self._sequences[rank] += 1
        return ChangeIdentity(rank, 1, self._sequences[rank]).fields()

    async def remove(self, ids: list[int]) -> None:
        routed = route(np.array(ids, np.int64), SHARDS)
        fields = {**self.name(0), "table": "rows", "step": 0}
        tensors = {"0.ids": routed.ids, "0.offsets": routed.offsets}
        message = Message(fields=fields, tensors=tensors)
        await self.machine.execute(Remove(remove_request(message, self.store))).applied

    def rows(self) -> dict[int, list[float]]:
        exported = [each.rows.export(0, each.rows.num_slots) for each in self.table.blocks]
        return {
            key: row.tolist()
            for ids, values, _ in exported
            for key, row in zip(ids.tolist(), values, strict=True)
        }


class Worker:
    """A worker's copies of rows, and its exchanges."""

    def __init__(self, server: Server, rank: int) -> None:
        self.server = server
        self.rank = rank
        self.replica = RowReplica(
            RowStore(SPEC), worker_num=2, merge="damped", num_shards=SHARDS
        )
        self.ack = 0
        self.num_exchanges = 0

    def train(self, ids: list[int], by: float) -> None:
        store = self.replica.store
        slots = store.slots(np.unique(np.array(ids, np.int64)))
        store.values[slots] += np.float32(by)
        self.replica.touch(slots)

    async def exchange(self, *, max_rows: int = 1 << 20, is_lost: bool = False) -> bool:
        """Send what has moved, and take the answer; return whether more waits."""
        deltas = self.replica.take_delta()
        self.num_exchanges += 1
        part = {"table": "rows", "ack": self.ack, "lr": 1.0}
        part |= {"max_rows": max_rows, "wire": "float32", "damping": 0.5}
        fields = {**self.server.name(self.rank), "parts": [part]}
        sent: dict[str, NDArray[Any]] = {"0.ids": deltas.ids, "0.offsets": deltas.offsets}
        sent["0.deltas"] = deltas.values
        message = Message(fields={**fields, "step": self.num_exchanges}, tensors=sent)
        request = exchange_request(message, self.server.store)
        outcome = self.server.machine.execute(Exchange(request))
        await outcome.applied
        assert outcome.taken is not None
        parts, tensors = described(await outcome.taken.read())
        if is_lost:
            return True
        answer = Message(fields={"parts": parts}, tensors=tensors)
        self.replica.drop(removed_ids(answer, 0))
        self.replica.receive(received_ids(answer, 0), tensors["0.rows"])
        self.ack = parts[0]["batch"]
        return bool(parts[0]["more"])

    def rows(self) -> dict[int, list[float]]:
        store = self.replica.store
        ids = store.live_ids()
        return dict(zip(ids.tolist(), store.values[store.held(ids)].tolist(), strict=True))


async def settle(workers: list[Worker]) -> None:
    """Exchange until nobody waits for anything."""
    for _ in range(2):
        for worker in workers:
            while await worker.exchange(max_rows=7):
                pass
        for worker in workers:
            await worker.exchange()


async def test_a_worker_drops_its_copy_of_a_removed_row_and_its_progress() -> None:
    server = Server()
    ada, bob = (Worker(server, rank) for rank in range(2))
    ada.train([1, 2, 3], 1.0)
    await settle([ada, bob])
    bob.train([2], 5.0)

    await server.remove([2, 3])
    await ada.exchange()
    assert sorted(ada.rows()) == [1]
    await settle([bob, ada])

    first = initial_rows(SPEC, np.array([2])) + 5
    assert sorted(server.rows()) == [1, 2], "bob has sent what he had not sent of row 2"
    np.testing.assert_allclose(server.rows()[2], first[0], rtol=1e-6)
    for worker in (ada, bob):
        assert worker.rows() == server.rows()
    await server.owners.close()


async def test_a_place_is_free_when_all_workers_have_dropped_the_row_or_left() -> None:
    server = Server()
    ada, bob = (Worker(server, rank) for rank in range(2))
    ada.train([*range(100)], 1.0)
    await settle([ada, bob])
    blocks = [block.rows for block in server.table.blocks]

    await server.remove([*range(50)])
    assert [sum(each.num_rows for each in blocks), sum(e.num_taken for e in blocks)] == [
        50,
        100,
    ]
    await ada.exchange()
    await ada.exchange()
    assert sum(each.num_taken for each in blocks) == 100, "bob has not heard of it"
    await bob.exchange()
    await bob.exchange()
    assert sum(each.num_taken for each in blocks) == 50
    await server.remove([*range(50, 60)])
    await ada.exchange()
    await ada.exchange()
    server.machine.execute(Leave(Rank(1), 1, Step(9)))
    await server.owners.settle()

    assert sum(each.num_taken for each in blocks) == 40
    ada.train([*range(1000, 1050)], 1.0)
    await ada.exchange()
    assert sum(each.num_slots for each in blocks) <= 110
    await server.owners.close()


@pytest.mark.parametrize("seed", range(6))
async def test_workers_agree_whatever_is_removed_trained_cut_off_and_lost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    server = Server()
    workers = [Worker(server, rank) for rank in range(2)]
    for _, worker in zip(range(120), cycle(workers), strict=False):
        if rng.random() < 0.8:
            worker.train(rng.integers(0, 40, 8).tolist(), float(rng.integers(-4, 5)))
        if rng.random() < 0.3:
            await server.remove(rng.integers(0, 40, 12).tolist())
        if rng.random() < 0.7:
            max_rows = int(rng.choice([1, 4, 1 << 20]))
            await worker.exchange(max_rows=max_rows, is_lost=rng.random() < 0.2)
    await server.remove(rng.integers(0, 40, 12).tolist())

    await settle(workers)

    held = server.rows()
    for worker in workers:
        rows = worker.rows()
        assert sorted(rows) == sorted(held)
        for key, row in rows.items():
            np.testing.assert_allclose(row, held[key], atol=1e-4)
    for block in server.table.blocks:
        assert block.rows.num_taken == block.rows.num_rows, "all have heard of all"
    await server.owners.close()
