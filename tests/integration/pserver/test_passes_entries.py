"""gpubox: which ids of a table get a row, and what pservers count of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.commands.pass_codec import describe_prepare, read_prepare
from paramfleet_pserver.commands.records import Prepare
from paramfleet_pserver.requests.pass_requests import prepare_request
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.admission import NEVER, Admission
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import EntrySpec, OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

COUNTED = TableSpec(
    name="counted",
    kind="sparse",
    dim=2,
    entry=EntrySpec(kind="count_filter", value=3, max_rows=80),
)
CHANCE = TableSpec(
    name="chance", kind="sparse", dim=2, entry=EntrySpec(kind="probability", value=0.5)
)
TRACKED = TableSpec(
    name="tracked",
    kind="sparse",
    dim=2,
    entry=EntrySpec(max_rows=8),
    optimizer=OptimizerSpec(tracks="step"),
)
PLAIN = TableSpec(name="plain", kind="sparse", dim=2)
IDS = np.arange(40)


def said(fields: Any, tensors: Any = None) -> Message:
    return Message(fields=fields, tensors=tensors or {})


class Trainer:
    """A worker that reads and writes one table by passes."""

    def __init__(self, worker: Worker, table: str) -> None:
        self.worker, self.table = worker, table
        self.number = 1
        self.free_rows: list[list[int]] = []

    @property
    def who(self) -> dict[str, Any]:
        return {"rank": self.worker.rank, "incarnation": self.worker.incarnation}

    async def waits(self, ids: Any = IDS) -> list[int]:
        """Return how often ids must come to get a row."""
        found = np.full(len(ids), -1, np.int32)
        self.free_rows = []
        for server in range(len(self.worker.channels)):
            asked = np.asarray(ids, np.int64)
            where, tensors = self.worker.part_of(server, 0, self.table, asked)
            fields = {**self.who, "parts": [{"table": self.table}]}
            answer = await self.worker.call(server, "read_pass", said(fields, tensors))
            self.writes = answer.fields["parts"][0]["writes"]
            found[where] = answer.tensors["0.waits"]
            if "0.room" in answer.tensors:
                self.free_rows.append(answer.tensors["0.room"].tolist())
        return found.tolist()

    async def write(
        self,
        stepped: Any = (),
        came: dict[int, int] | None = None,
        *,
        refused: int = 0,
        **changed: Any,
    ) -> None:
        """Write rows back, and how often others came."""
        stepped = np.array(stepped, np.int64)
        others = np.array(list(came or {}), np.int64)
        uses = np.array(list((came or {}).values()), np.int32)
        width = len(self.worker.specs[self.table].optimizer.columns)
        for server in range(len(self.worker.channels)):
            where, tensors = self.worker.part_of(server, 0, self.table, stepped)
            tensors["0.values"] = np.ones((len(where), 2), np.float32)
            tensors["0.states"] = np.full((len(where), width), 7, np.float32)
            about = {"table": self.table, "writes": self.writes, "updates": self.number}
            if came is not None:
                there, extra = self.worker.part_of(server, 0, self.table, others)
                tensors["0.came"], tensors["0.came_offsets"] = (
                    extra["0.ids"],
                    extra["0.offsets"],
                )
                tensors["0.uses"] = uses[there]
                about["refused"] = int(uses[there].sum()) + (refused if server == 0 else 0)
            fields = {**self.who, "pass": self.number, "piece": 0, "pieces": 1}
            message = said({**fields, "parts": [about]}, tensors | changed)
            await self.worker.call(server, "prepare_pass", message)
        pieces = [[0, 1]]
        await self.worker.ask("commit_pass", **{"pass": self.number}, pieces=pieces)
        self.number += 1


async def started(
    start_servers: Start, spec: TableSpec, **more: Any
) -> tuple[Cluster, Trainer]:
    cluster = await start_servers(2, **more)
    worker = cluster.worker()
    await worker.declare(spec, mode="gpubox", worker_num=1)
    return cluster, Trainer(worker, spec.name)


def facts_of(cluster: Cluster, table: str) -> dict[str, int]:
    facts = [each for routes in cluster.routes for each in routes.facts()["tables"]]
    own = [each for each in facts if each["name"] == table]
    return {key: sum(each[key] for each in own) for key in ("rows", "admitted", "refused")}


async def test_pservers_count_what_came_without_a_row_and_make_none(
    start_servers: Start,
) -> None:
    cluster, trainer = await started(start_servers, COUNTED)
    assert await trainer.waits() == [3] * 40

    await trainer.write([], {1: 1, 2: 2, 3: 5})

    waits = await trainer.waits()
    assert waits[:5] == [3, 2, 1, 1, 3]
    assert facts_of(cluster, "counted") == {"rows": 0, "admitted": 0, "refused": 8}


async def test_what_a_pass_admits_has_a_row_and_its_count(start_servers: Start) -> None:
    cluster, trainer = await started(start_servers, COUNTED)
    await trainer.waits()

    await trainer.write([4, 5], {4: 2, 5: 2, 6: 1})

    assert (await trainer.waits())[4:7] == [0, 0, 2]
    assert facts_of(cluster, "counted") == {"rows": 2, "admitted": 2, "refused": 5}


async def test_each_shard_says_how_many_rows_it_may_still_get(start_servers: Start) -> None:
    _, trainer = await started(start_servers, COUNTED)
    await trainer.waits()
    num_shards = trainer.worker.placement.num_shards
    share = 80 // num_shards
    assert trainer.free_rows == [[share] * (num_shards // 2)] * 2

    await trainer.write([4, 5])

    await trainer.waits([])
    assert sum(map(sum, trainer.free_rows)) == share * num_shards - 2


async def test_ids_that_chance_refuses_wait_for_ever(start_servers: Start) -> None:
    cluster, trainer = await started(start_servers, CHANCE)
    waits = np.array(await trainer.waits())

    keys = IDS.view(np.uint64)
    placed = TableSpec(
        name="chance",
        kind="sparse",
        dim=2,
        entry=CHANCE.entry,
        num_shards=trainer.worker.placement.num_shards,
    )
    admitted = Admission(placed).decide(keys)
    assert np.array_equal(waits, np.where(admitted, 1, NEVER))
    await trainer.write([int(IDS[admitted][0])], {}, refused=9)
    assert facts_of(cluster, "chance") == {"rows": 1, "admitted": 1, "refused": 9}


async def test_rows_are_written_back_with_the_step_of_their_last_push(
    start_servers: Start,
) -> None:
    cluster, trainer = await started(start_servers, TRACKED)
    assert await trainer.waits([1]) == [1]

    await trainer.write([1])

    blocks = [
        block.rows
        for routes in cluster.routes
        if isinstance(table := routes._store.find("tracked"), SparseTable)
        for block in table.blocks
    ]
    (row,) = [rows for rows in blocks if rows.num_rows]
    assert row.read(np.array([1]))[1].tolist() == [[7]]
    assert row.sample(9).ages.tolist() == [0], "as of the latest push"


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"0.uses": np.zeros(2, np.int32)}, RowShapeError),
        ({"0.uses": np.zeros(1, np.int64)}, RowShapeError),
        ({"0.came": np.array([99])}, MalformedMessageError),
    ],
)
async def test_counts_that_fit_no_ids_are_refused(
    start_servers: Start, changed: Any, error: type[Exception]
) -> None:
    _, trainer = await started(start_servers, COUNTED)
    await trainer.waits()
    with pytest.raises(error):
        await trainer.write([], {1: 1}, **changed)


async def test_a_table_that_admits_all_counts_nothing(start_servers: Start) -> None:
    _, trainer = await started(start_servers, PLAIN)
    trainer.writes = 0
    with pytest.raises(MalformedMessageError, match="of a table with an entry"):
        await trainer.write([], {1: 1})


async def test_the_log_has_what_came(start_servers: Start) -> None:
    cluster, trainer = await started(start_servers, COUNTED)
    store = cluster.routes[0]._store
    ids = np.array([5, 9])
    where, tensors = trainer.worker.part_of(0, 0, "counted", ids)
    none = np.zeros_like(tensors["0.offsets"])
    came = {"0.came": tensors["0.ids"], "0.came_offsets": tensors["0.offsets"]}
    part = {"table": "counted", "writes": 0, "updates": 1, "refused": 4}
    fields = {**trainer.who, "pass": 1, "piece": 0, "pieces": 1, "parts": [part]}
    rows = {"0.ids": ids[:0], "0.offsets": none, "0.values": np.empty((0, 2), np.float32)}
    rows |= {"0.states": np.empty((0, 0), np.float32)}
    uses = {"0.uses": np.arange(len(where), dtype=np.int32)}
    kept = Prepare(prepare_request(said(fields, came | rows | uses), store))

    again = read_prepare(said(*describe_prepare(kept)), store)

    (had,), (has,) = kept.prepare.parts, again.prepare.parts
    assert has.fields() == had.fields()
    assert has.fields()["refused"] == 4
    assert {name: each.tolist() for name, each in has.tensors().items()} == {
        name: each.tolist() for name, each in had.tensors().items()
    }
    assert has.num_bytes > none.nbytes
