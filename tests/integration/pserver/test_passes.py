"""gpubox: rows are read whole, and what a pass made of them is wholly in or wholly out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.requests import checked
from paramfleet_pserver.tables.owners import Job
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.checkpoint.manifest import (
    Manifest,
    SavedFile,
    SavedTable,
    write_manifest,
)
from paramfleet_shared.errors.served import (
    AnswerTooLargeError,
    ElasticModeError,
    FencedError,
    ForeignWriteError,
    OperationModeError,
    PassCommittedError,
    PassInDoubtError,
    PassNotPreparedError,
    PassNumberError,
    PassNumbersError,
    PassPieceRepeatedError,
    PassPiecesError,
    PassPreparedError,
    PassUpdatesError,
    TablesDamagedError,
    UnknownTableError,
    UnknownWorkerError,
)
from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.memory.reservation import CapacityError
from paramfleet_shared.tables.rowstore import RowShapeError, initial_rows
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.values.amounts import Memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

DIM, SIZE = 3, 29
FIRST = InitializerSpec(kind="uniform", low=-1.0, high=1.0)
ADAGRAD = OptimizerSpec(rule="adagrad", initial_accumulator_value=0.5)
ROWS = TableSpec(name="rows", kind="sparse", dim=DIM, initializer=FIRST, optimizer=ADAGRAD)
PLAIN = TableSpec(name="plain", kind="sparse", dim=2, initializer=FIRST, storage="bfloat16")
MOMENTUM = TableSpec(
    name="momentum", kind="dense", size=SIZE, optimizer=OptimizerSpec(rule="momentum")
)
ADAM = TableSpec(name="adam", kind="dense", size=SIZE, optimizer=OptimizerSpec(rule="adam"))
ALL = (ROWS, PLAIN, MOMENTUM, ADAM)
IDS = np.arange(40)


def said(fields: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> Message:
    return Message(fields=fields, tensors=tensors or {})


@dataclass
class Read:
    """What a pass reads of one table, of all servers."""

    values: NDArray[np.float32]
    states: NDArray[np.float32]
    """Of a dense table [S, P]."""
    facts: list[dict[str, Any]]
    """Of each server."""


class Trainer:
    """A worker that trains passes."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.number = 1
        self.writes: dict[tuple[int, str], int] = {}

    @property
    def name(self) -> dict[str, Any]:
        return {"rank": self.worker.rank, "incarnation": self.worker.incarnation}

    def _part(self, server: int, index: int, table: str, ids: Any) -> Any:
        """Return where a server's part lies, its fields and its tensors."""
        if ids is not None:
            where, tensors = self.worker.part_of(
                server, index, table, np.asarray(ids, np.int64)
            )
            return where, {"table": table}, tensors
        where = self.worker.range_of(server, self.worker.specs[table].size)
        return where, {"table": table, "start": 0, "stop": where.stop - where.start}, {}

    async def read(self, wanted: Mapping[str, Any]) -> dict[str, Read]:
        """Read tables: rows of ids, or all of a dense one (None)."""
        found: dict[str, Read] = {}
        for table, ids in wanted.items():
            spec, num = self.worker.specs[table], 0 if ids is None else len(ids)
            width = len(spec.optimizer.columns)
            shapes: Any = [(num, spec.dim), (num, spec.dim * width)]
            if ids is None:
                shapes = [(spec.size,), (width, spec.size)]
            values, states = (np.full(shape, np.nan, np.float32) for shape in shapes)
            found[table] = Read(values, states, [])
        for server in range(len(self.worker.channels)):
            parts = [self._part(server, i, *each) for i, each in enumerate(wanted.items())]
            fields = {**self.name, "parts": [about for _, about, _ in parts]}
            tensors = {name: each for _, _, some in parts for name, each in some.items()}
            answer = await self.worker.call(server, "read_pass", said(fields, tensors))
            for i, (table, own) in enumerate(found.items()):
                where = parts[i][0]
                own.facts.append(answer.fields["parts"][i])
                self.writes[server, table] = own.facts[-1]["writes"]
                own.values[where] = answer.tensors[f"{i}.values"]
                if wanted[table] is None:
                    own.states[:, where] = answer.tensors[f"{i}.states"]
                else:
                    own.states[where] = answer.tensors[f"{i}.states"]
        return found

    def pieces(
        self,
        content: Mapping[str, tuple[Any, Any, Any]],
        *,
        piece: int = 0,
        pieces: int | None = 1,
        updates: int = 1,
        stepped: bool = True,
        **more: Any,
    ) -> list[Message]:
        """Return one message a server: of each table (ids or None, values, states)."""
        out = []
        for server in range(len(self.worker.channels)):
            wire: list[dict[str, Any]] = []
            tensors: dict[str, Any] = {}
            for index, (table, (ids, values, states)) in enumerate(content.items()):
                where, about, some = self._part(server, index, table, ids)
                tensors |= some
                mine = states[where] if ids is not None else states[:, where]
                tensors[f"{index}.values"] = np.ascontiguousarray(values[where], np.float32)
                tensors[f"{index}.states"] = np.ascontiguousarray(mine, np.float32)
                about |= {"writes": self.writes.get((server, table), 0), "updates": updates}
                wire.append(about | {"stepped": stepped})
            fields = {**self.name, "pass": self.number, "piece": piece, "pieces": pieces}
            out.append(said({**fields, "parts": wire, **more}, tensors))
        return out

    async def prepare(self, content: Mapping[str, Any], **more: Any) -> list[bool]:
        answers = await self.worker.send("prepare_pass", self.pieces(content, **more))
        return [answer.fields["duplicate"] for answer in answers]

    async def commit(self, pieces: Any = ((0, 1),), **more: Any) -> list[Message]:
        named = None if pieces is None else [list(pair) for pair in pieces]
        return await self.worker.ask(
            "commit_pass", **{"pass": self.number}, pieces=named, **more
        )

    async def abort(self) -> None:
        await self.worker.ask("abort_pass", **{"pass": self.number})

    async def state(self) -> dict[str, Any]:
        return dict((await self.worker.ask("pass_state"))[0].fields)


async def started(
    start: Start, num_servers: int = 1, *specs: TableSpec, worker_num: int = 1, **more: Any
) -> tuple[Cluster, Trainer]:
    cluster = await start(num_servers, **more)
    worker = cluster.worker()
    await worker.declare(*(specs or ALL), mode="gpubox", worker_num=worker_num)
    return cluster, Trainer(worker)


def numbers(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.abs(np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def rows_of(ids: Sequence[int] | NDArray[np.int64] = IDS, seed: int = 1) -> Any:
    return ids, numbers(len(ids), DIM, seed=seed), numbers(len(ids), DIM, seed=seed + 1)


def num_rows(cluster: Cluster, table: str = "rows") -> int:
    facts = [each for routes in cluster.routes for each in routes.facts()["tables"]]
    return sum(each["rows"] for each in facts if each["name"] == table)


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def refused(call: Awaitable[Any], error: type[Exception], words: str) -> dict[str, Any]:
    """Return the facts of the error that a call is refused with."""
    with pytest.raises(error, match=words) as caught:
        await call
    facts: dict[str, Any] = dict(caught.value.facts)  # type: ignore[attr-defined]
    return facts


@pytest.mark.parametrize("num_servers", [1, 3])
async def test_what_does_not_exist_is_read_as_it_begins_and_not_created(
    start_servers: Start, num_servers: int
) -> None:
    cluster, trainer = await started(start_servers, num_servers)

    found = await trainer.read({"rows": IDS, "plain": IDS, "momentum": None, "adam": None})

    np.testing.assert_array_equal(found["rows"].values, initial_rows(ROWS, IDS))
    np.testing.assert_array_equal(found["rows"].states, np.full((40, DIM), 0.5, np.float32))
    np.testing.assert_array_equal(found["plain"].values, initial_rows(PLAIN, IDS))
    assert found["plain"].states.shape == (40, 0)
    np.testing.assert_array_equal(found["adam"].states, np.zeros((2, SIZE), np.float32))
    for table in found.values():
        for facts in table.facts:
            assert facts == {"writes": 0, "updates": 0, "stepped": False}
    assert num_rows(cluster) == num_rows(cluster, "plain") == 0


@pytest.mark.parametrize("num_servers", [1, 3])
async def test_a_pass_over_several_tables_is_read_as_it_was_written(
    start_servers: Start, num_servers: int
) -> None:
    cluster, trainer = await started(start_servers, num_servers)
    flats = {"momentum": (None, numbers(SIZE), numbers(1, SIZE)),
             "adam": (None, numbers(SIZE), numbers(2, SIZE))}  # fmt: skip
    plain = (IDS, np.round(numbers(40, 2) * 8), numbers(40, 0))

    await trainer.prepare({"rows": rows_of(), "plain": plain}, pieces=None, updates=7)
    await trainer.prepare(flats, piece=1, pieces=2, updates=9)
    assert num_rows(cluster) == 0
    answers = await trainer.commit([(0, 2)])

    assert [a.fields for a in answers] == [{"duplicate": False, "passes": 1}] * num_servers
    assert num_rows(cluster) == num_rows(cluster, "plain") == 40
    wanted = {"rows": IDS, "plain": IDS, "momentum": None, "adam": None}
    found = await trainer.read(wanted)
    for table, (_, values, states) in {"rows": rows_of(), "plain": plain, **flats}.items():
        np.testing.assert_array_equal(found[table].values, values)
        np.testing.assert_array_equal(found[table].states, states)
        updates = 9 if table in flats else 7
        for facts in found[table].facts:
            assert facts == {"writes": 1, "updates": updates, "stepped": table in flats}
    for facts in cluster.routes[0].facts()["tables"]:
        assert (facts["version"], facts["pushes"]) == (1, 1)
    assert await trainer.state() == {"passes": 1, "held": []}


async def test_part_of_a_range_is_read_and_written_and_its_rest_stays(
    start_servers: Start,
) -> None:
    _, trainer = await started(start_servers, 1, ADAM)
    before = (await trainer.read({"adam": None}))["adam"].values
    part = {"table": "adam", "start": 5, "stop": 9, "writes": 0, "updates": 3}
    tensors = {"0.values": numbers(4), "0.states": numbers(2, 4)}
    fields = {**trainer.name, "pass": 1, "piece": 0, "parts": [part]}

    await trainer.worker.call(0, "prepare_pass", said(fields, tensors))
    await trainer.commit()

    found = (await trainer.read({"adam": None}))["adam"]
    before[5:9] = numbers(4)
    np.testing.assert_array_equal(found.values, before)
    assert found.facts == [{"writes": 1, "updates": 3, "stepped": False}]
    part = {"table": "adam", "start": 5, "stop": 8}
    message = said({**trainer.name, "parts": [part]})
    answer = await trainer.worker.call(0, "read_pass", message)
    np.testing.assert_array_equal(answer.tensors["0.states"], numbers(2, 4)[:, :3])


async def test_a_table_may_count_steps_without_rows(start_servers: Start) -> None:
    _, trainer = await started(start_servers, 1, ROWS)

    await trainer.prepare({"rows": rows_of([])}, updates=12)
    await trainer.commit()

    facts = (await trainer.read({"rows": []}))["rows"].facts
    assert facts == [{"writes": 1, "updates": 12, "stepped": False}]


async def test_every_request_may_be_sent_again(start_servers: Start) -> None:
    cluster, trainer = await started(start_servers, 2, ROWS)

    assert await trainer.prepare({"rows": rows_of()}) == [False, False]
    assert await trainer.prepare({"rows": rows_of()}) == [True, True]
    assert [a.fields["duplicate"] for a in await trainer.commit()] == [False, False]
    again = await trainer.commit()

    assert [a.fields for a in again] == [{"duplicate": True, "passes": 1}] * 2
    assert num_rows(cluster) == 40
    trainer.number = 2
    await trainer.read({"rows": IDS})
    await trainer.prepare({"rows": rows_of(seed=5)})
    await trainer.abort()
    await trainer.abort()
    assert await trainer.state() == {"passes": 1, "held": []}
    np.testing.assert_array_equal(
        (await trainer.read({"rows": IDS}))["rows"].values, rows_of()[1]
    )
    trainer.number = 1
    about = await refused(trainer.abort(), PassCommittedError, "up to 1 are committed")
    assert about == {"number": 1, "committed": 1}


async def test_a_commit_sent_again_waits_for_the_one_that_is_being_applied(
    start_servers: Start,
) -> None:
    cluster, trainer = await started(start_servers, 1, ROWS)
    await trainer.prepare({"rows": rows_of()})
    owners, gate = cluster.routes[0]._owners, asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(timeout=20)

    held = owners.start(Job(owner, 1 << 20, wait) for owner in range(len(owners)))
    calls = [begin(trainer.commit()) for _ in range(2)]
    await asyncio.wait(calls, timeout=0.3)
    assert not any(call.done() for call in calls)
    gate.set()
    await held

    answers = [(await call)[0].fields for call in calls]
    assert answers == [{"duplicate": each, "passes": 1} for each in (False, True)]


async def test_the_same_piece_with_other_numbers_is_refused(start_servers: Start) -> None:
    _, trainer = await started(start_servers, 1, ROWS)
    await trainer.prepare({"rows": rows_of()})

    for other in ({"rows": rows_of(seed=2)}, {"rows": rows_of(IDS + 1)}, {}):
        again = trainer.prepare(other)
        about = await refused(again, PassPieceRepeatedError, "piece 0 of pass 1 before")
        assert about == {"rank": 0, "number": 1, "piece": 0}
    await refused(
        trainer.prepare({"rows": rows_of()}, updates=4),
        PassPieceRepeatedError,
        "abort the pass",
    )


async def test_pieces_that_lack_or_dont_fit_are_refused(start_servers: Start) -> None:
    _, trainer = await started(start_servers, 1, ROWS)
    await trainer.prepare({"rows": rows_of([1])}, pieces=None)
    await trainer.prepare({"rows": rows_of([2])}, piece=1, pieces=None)

    about = await refused(trainer.commit([(0, 3)]), PassNotPreparedError, "should be 3")
    assert about == {"number": 1, "rank": 0, "held": 2, "named": 3}
    about = await refused(
        trainer.commit(None), PassNotPreparedError, "the number of pieces is not known"
    )
    assert about == {"number": 1, "rank": 0, "held": 2, "named": None}
    late = trainer.prepare({}, piece=0, pieces=1)
    about = await refused(late, PassPiecesError, "piece 1 doesn't fit 1 pieces")
    assert about == {"rank": 0, "number": 1, "piece": 1, "pieces": 1}
    held = {"rank": 0, "incarnation": 1, "pass": 1, "pieces": 2, "sealed": False}
    assert await trainer.state() == {"passes": 0, "held": [held]}
    trainer.number = 2
    about = await refused(trainer.prepare({}), PassNumberError, "pass 2 can't be prepared")
    assert about == {"number": 2, "expected": 1}


async def test_two_workers_write_one_pass_in_the_order_of_ranks(start_servers: Start) -> None:
    cluster, one = await started(start_servers, 1, ROWS, worker_num=2)
    other = Trainer(cluster.worker(1))
    await other.worker.declare(ROWS, mode="gpubox", worker_num=2)

    await other.prepare({"rows": rows_of([1, 2], seed=8)}, updates=3)
    await one.prepare({"rows": rows_of([2, 3], seed=4)}, updates=2)
    await other.commit([(0, 1), (1, 1)])

    found = (await one.read({"rows": [1, 2, 3]}))["rows"]
    expected = [*rows_of([1, 2], seed=8)[1], rows_of([2, 3], seed=4)[1][1]]
    np.testing.assert_array_equal(found.values, expected)
    assert found.facts[0]["updates"] == 3


async def removed(_: Cluster, worker: Worker, __: Path) -> None:
    await worker.remove("rows", [3])


async def assigned(_: Cluster, worker: Worker, __: Path) -> None:
    fields = {"rank": worker.rank, "incarnation": worker.incarnation, "table": "adam"}
    values = {"rows": np.ones(SIZE, np.float32)}
    await worker.call(0, "assign", said({**fields, "only_if_new": False}, values))


async def loaded(cluster: Cluster, worker: Worker, folder: Path) -> None:
    del cluster
    await worker.ask("load", dirname=str(folder))


async def save(worker: Worker, folder: Path) -> None:
    (answer,) = await worker.ask("save", dirname=str(folder), timeout_s=60.0)
    files = tuple(SavedFile.from_wire(each) for each in answer.fields["files"])
    tables = tuple(SavedTable.from_wire(each) for each in answer.fields["tables"])
    write_manifest(folder, Manifest(tables=tables, files=files))


@pytest.mark.parametrize(
    ("write", "operation", "table", "by"),
    [
        (removed, "remove", "rows", "a removal by worker 0"),
        (assigned, "assign", "adam", "an assignment by worker 0"),
        (loaded, "load", "rows", "a load"),
        (loaded, "load", "adam", "a load"),
    ],
)
async def test_what_others_write_meanwhile_is_not_overwritten(
    start_servers: Start, tmp_path: Path, write: Any, operation: str, table: str, by: str
) -> None:
    cluster, trainer = await started(start_servers, 1, ROWS, ADAM)
    content: dict[str, Any] = {
        "rows": rows_of(),
        "adam": (None, numbers(SIZE), numbers(2, SIZE)),
    }
    await save(trainer.worker, tmp_path)
    wanted = {"rows": IDS, "adam": None}
    await trainer.read(wanted)
    await write(cluster, trainer.worker, tmp_path)

    about = await refused(
        trainer.prepare({table: content[table]}), ForeignWriteError, "begin it again"
    )
    assert about == {"table": table, "by": by, "number": 1}
    with pytest.raises(ForeignWriteError, match=f"was written by {by} since"):
        await trainer.prepare(content)
    assert await trainer.state() == {"passes": 0, "held": []}

    await trainer.read(wanted)
    await trainer.prepare(content)
    late = write(cluster, trainer.worker, tmp_path)
    about = await refused(late, PassPreparedError, "pass 1 of worker 0 is being written back")
    assert about == {"operation": operation, "number": 1, "rank": 0}
    await trainer.commit()
    np.testing.assert_array_equal(
        (await trainer.read({"rows": IDS}))["rows"].values, rows_of()[1]
    )
    trainer.worker.sequence = 5
    await write(cluster, trainer.worker, tmp_path)


async def test_a_pass_that_another_wrote_since_is_named(start_servers: Start) -> None:
    _, trainer = await started(start_servers, 1, ROWS)
    await trainer.prepare({"rows": rows_of()}, updates=5)
    await trainer.commit()
    trainer.number = 2

    late = trainer.prepare({"rows": rows_of()})
    about = await refused(late, ForeignWriteError, "written by pass 1 since")
    assert about == {"table": "rows", "by": "pass 1", "number": 2}
    trainer.writes[0, "rows"] = 1
    late = trainer.prepare({"rows": rows_of()}, updates=4)
    about = await refused(late, PassUpdatesError, "for 4 steps, and 5 were taken before")
    assert about == {"table": "rows", "rank": 0, "updates": 4, "present": 5}


async def test_what_has_no_effect_is_no_write(start_servers: Start) -> None:
    """First values that are known, ids of other pservers, a removal that is sent again."""
    _, trainer = await started(start_servers, 1, ROWS, ADAM)
    worker = trainer.worker
    await assigned(None, worker, None)  # type: ignore[arg-type]  # neither is used
    message = worker.remove_messages("rows", [3])
    await worker.send("remove", message)
    content = {"rows": rows_of(), "adam": (None, numbers(SIZE), numbers(2, SIZE))}
    await trainer.read({"rows": [], "adam": None})
    await trainer.prepare(content)

    fields = {**trainer.name, "table": "adam", "only_if_new": True}
    values = {"rows": np.ones(SIZE, np.float32)}
    answer = await worker.call(0, "assign", said(fields, values))
    assert not answer.fields["assigned"]
    await worker.send("remove", message)
    assert await worker.remove("rows", []) == 0
    await trainer.commit()


async def test_a_new_process_commits_what_its_former_self_prepared(
    start_servers: Start,
) -> None:
    cluster, former = await started(start_servers, 1, ROWS)
    await former.prepare({"rows": rows_of()})
    cluster.routes[0].lose(former.worker.rank, 1)  # type: ignore[arg-type]  # a rank
    latter = Trainer(cluster.worker(incarnation=2))
    await latter.worker.declare(ROWS, mode="gpubox")

    held = {"rank": 0, "incarnation": 1, "pass": 1, "pieces": 1, "sealed": True}
    assert await latter.state() == {"passes": 0, "held": [held]}
    about = await refused(
        latter.prepare({"rows": rows_of()}), PassInDoubtError, "commit or abort that before"
    )
    assert about == {"rank": 0, "number": 1}
    calls = (former.prepare({}), former.commit(), former.abort(), former.read({"rows": [1]}))
    for call in calls:
        await refused(call, FencedError, "incarnation 1 was replaced by 2")
    assert (await latter.commit(None))[0].fields == {"duplicate": False, "passes": 1}
    assert (await latter.commit(None))[0].fields == {"duplicate": True, "passes": 1}

    found = (await latter.read({"rows": IDS}))["rows"]
    np.testing.assert_array_equal(found.values, rows_of()[1])


async def test_a_new_process_aborts_what_is_not_whole(start_servers: Start) -> None:
    cluster, former = await started(start_servers, 1, ROWS)
    await former.prepare({"rows": rows_of()}, pieces=None)
    latter = Trainer(cluster.worker(incarnation=2))
    await latter.worker.declare(ROWS, mode="gpubox")

    await refused(latter.commit(None), PassNotPreparedError, "1 of worker 0's pieces")
    await latter.abort()
    about = await refused(latter.commit(None), PassNotPreparedError, "no piece of it is")
    assert about == {"number": 1, "rank": None, "held": 0, "named": None}
    await latter.prepare({"rows": rows_of(seed=3)})
    await latter.commit()

    assert (await latter.state())["passes"] == 1
    assert num_rows(cluster) == 40


@pytest.mark.parametrize("what", ["values", "states"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
async def test_numbers_that_are_none_are_refused(
    start_servers: Start, what: str, bad: float
) -> None:
    _, trainer = await started(start_servers, 1, ROWS, ADAM)
    for table, content in {
        "rows": rows_of(),
        "adam": (None, numbers(SIZE), numbers(2, SIZE)),
    }.items():
        content[1 if what == "values" else 2][..., -1] = bad
        about = await refused(
            trainer.prepare({table: content}), PassNumbersError, "nothing was kept"
        )
        rule = f"{what} hold infinities or NaN"
        assert about == {"table": table, "rank": 0, "number": 1, "rule": rule}
    about = await refused(
        trainer.prepare({"rows": (IDS, numbers(40, DIM), -numbers(40, DIM))}),
        PassNumbersError,
        "sums of squares of adagrad are negative",
    )
    assert await trainer.state() == {"passes": 0, "held": []}


async def test_a_pass_without_room_for_its_rows_is_not_kept(start_servers: Start) -> None:
    cluster, trainer = await started(start_servers, 1, ROWS, PLAIN)
    table = cluster.routes[0]._store.find("rows")
    assert isinstance(table, SparseTable)
    shards = [SparseShard(ROWS, max_rows=30) for _ in table.blocks]
    table.blocks = tuple(
        block._replace(rows=shard) for block, shard in zip(table.blocks, shards, strict=True)
    )
    table._capacity.replace(table.blocks)
    plain = (IDS, numbers(40, 2), numbers(40, 0))

    many = {"plain": plain, "rows": rows_of(np.arange(200))}
    await refused(trainer.prepare(many), CapacityError, "rows")

    assert await trainer.state() == {"passes": 0, "held": []}
    assert table._capacity.num_claimed == 0
    await trainer.prepare({"rows": rows_of()}, pieces=None)
    claimed = table._capacity.num_claimed
    assert 0 < claimed <= 40
    await refused(
        trainer.prepare({"rows": rows_of(np.arange(100, 140))}, piece=1, pieces=None),
        CapacityError,
        "rows",
    )
    await refused(
        trainer.worker.pull("rows", range(100, 140), create=True), CapacityError, "rows"
    )
    await trainer.prepare({"rows": rows_of(seed=3)}, piece=1, pieces=2)
    await trainer.commit([(0, 2)])
    assert table._capacity.num_claimed == 0
    found = (await trainer.read({"rows": IDS}))["rows"]
    np.testing.assert_array_equal(found.values, rows_of(seed=3)[1])


async def test_an_abort_gives_the_room_back(start_servers: Start) -> None:
    cluster, trainer = await started(start_servers, 1, ROWS)
    table = cluster.routes[0]._store.find("rows")
    assert isinstance(table, SparseTable)
    await trainer.prepare({"rows": rows_of()})
    await trainer.prepare({"rows": rows_of()})
    assert table._capacity.num_claimed == 40

    await trainer.abort()

    assert table._capacity.num_claimed == 0
    assert num_rows(cluster) == 0


async def test_a_pass_without_memory_for_it_is_not_kept(start_servers: Start) -> None:
    memory = [Memory(free=1 << 40, total=1 << 40)]
    cluster, trainer = await started(start_servers, 1, ADAM, memory=lambda: memory[0])
    memory[0] = Memory(free=100, total=1000)
    content = {"adam": (None, numbers(SIZE), numbers(2, SIZE))}

    about = await refused(trainer.prepare(content), TableMemoryError, "is written back")

    assert (about["table"], about["num_bytes"]) == ("adam", 3 * 4 * SIZE)
    assert await trainer.state() == {"passes": 0, "held": []}
    assert len(cluster.routes) == 1


async def test_a_save_holds_what_is_committed_and_no_more(
    start_servers: Start, tmp_path: Path
) -> None:
    _, trainer = await started(start_servers, 1, ROWS)
    await trainer.prepare({"rows": rows_of()})
    await trainer.commit()
    trainer.number = 2
    await trainer.read({"rows": IDS})
    await trainer.prepare({"rows": rows_of(seed=9)}, updates=2)

    await save(trainer.worker, tmp_path)
    await trainer.abort()
    await trainer.worker.ask("load", dirname=str(tmp_path))

    found = (await trainer.read({"rows": IDS}))["rows"]
    np.testing.assert_array_equal(found.values, rows_of()[1])
    np.testing.assert_array_equal(found.states, rows_of()[2])
    assert found.facts == [{"writes": 2, "updates": 1, "stepped": False}]


async def test_a_pass_that_fails_in_its_middle_ends_the_training(start_servers: Start) -> None:
    cluster, trainer = await started(start_servers, 1, ROWS)
    table = cluster.routes[0]._store.find("rows")
    assert isinstance(table, SparseTable)
    await trainer.prepare({"rows": rows_of()})
    table.blocks = tuple(b._replace(rows=SparseShard(ROWS, max_rows=1)) for b in table.blocks)

    about = await refused(trainer.commit(), TablesDamagedError, "was applied in part")

    assert about["step"] == 1
    for call in (trainer.commit(), trainer.read({"rows": [1]}), trainer.prepare({})):
        await refused(call, TablesDamagedError, "was applied in part")
    assert table._capacity.num_claimed == 0


async def test_an_answer_that_nobody_would_take_is_refused(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trainer = await started(start_servers, 1, ROWS, ADAM)
    monkeypatch.setattr(checked, "MAX_ANSWER_BYTES", 700)

    about = await refused(
        trainer.read({"adam": None, "rows": IDS}), AnswerTooLargeError, "ask for less at a time"
    )

    num_bytes = 4 * (3 * SIZE + 40 * 2 * DIM)
    assert about == {"table": "rows", "rows": 40, "num_bytes": num_bytes, "limit_bytes": 700}


async def test_other_operations_and_other_workers_are_refused(start_servers: Start) -> None:
    cluster, trainer = await started(start_servers, 1, ROWS)
    for operation in ("push", "step", "exchange", "total"):
        about = await refused(
            trainer.worker.ask(operation), OperationModeError, "not an operation"
        )
        assert about == {"operation": operation, "mode": "gpubox"}
    stranger = Trainer(cluster.worker(4))
    stranger.worker.specs = trainer.worker.specs
    calls = (stranger.prepare({}), stranger.commit(), stranger.abort(), stranger.read({}))
    for call in calls:
        assert await refused(call, UnknownWorkerError, "worker 4 is not") == {"rank": 4}
    sync = await start_servers(1)
    await sync.worker().declare(ROWS, mode="sync")
    for operation in ("read_pass", "prepare_pass", "commit_pass", "abort_pass", "pass_state"):
        await refused(sync.worker().ask(operation), OperationModeError, f"'{operation}' is no")


async def test_workers_that_come_and_go_can_not_train_passes(start_servers: Start) -> None:
    cluster = await start_servers(1, elastic=True)

    declared = cluster.worker().declare(ROWS, mode="gpubox", worker_num=2)
    about = await refused(
        declared, ElasticModeError, "every worker into every pass.*set elastic"
    )

    assert about == {"mode": "gpubox"}


@pytest.mark.parametrize(
    ("change", "error", "rule"),
    [
        ({"parts": [{"table": "none"}]}, UnknownTableError, "none"),
        ({"parts": [{"table": "rows", "updates": 1}]}, MalformedMessageError, "'writes'"),
        (
            {"parts": [{"table": "rows", "writes": 0, "updates": -1}]},
            MalformedMessageError,
            ">= 0",
        ),
        ({"parts": 3}, MalformedMessageError, "list of maps"),
        ({"pass": 0}, MalformedMessageError, "'pass' must be a whole number >= 1"),
        ({"piece": 1, "pieces": 1}, MalformedMessageError, "below the number of pieces"),
        ({"piece": 1 << 20, "pieces": None}, MalformedMessageError, "at most 1048576"),
        ({"pieces": 1 << 21}, MalformedMessageError, "at most 1048576"),
    ],
)
async def test_a_piece_that_is_none_is_refused(
    start_servers: Start, change: dict[str, Any], error: type[Exception], rule: str
) -> None:
    _, trainer = await started(start_servers, 1, ROWS)
    (message,) = trainer.pieces({"rows": rows_of()})
    wrong = said({**message.fields, **change}, message.tensors)

    await refused(trainer.worker.call(0, "prepare_pass", wrong), error, rule)


async def test_a_tensor_of_no_part_is_refused(start_servers: Start) -> None:
    _, trainer = await started(start_servers, 1, ROWS)
    (message,) = trainer.pieces({"rows": rows_of()})
    more = said(message.fields, {**message.tensors, "junk": np.zeros(9)})

    prepared = trainer.worker.call(0, "prepare_pass", more)
    await refused(prepared, MalformedMessageError, "tensor 'junk' is of no part")


async def test_a_worker_that_leaves_in_good_order_leaves_nothing_prepared(
    start_servers: Start,
) -> None:
    cluster, trainer = await started(start_servers, 1, ROWS)
    table = cluster.routes[0]._store.find("rows")
    assert isinstance(table, SparseTable)
    await trainer.prepare({"rows": rows_of()}, pieces=None)

    await trainer.worker.ask("leave", step=0)

    assert await trainer.state() == {"passes": 0, "held": []}
    assert table._capacity.num_claimed == 0


async def test_tensors_that_dont_fit_are_refused(start_servers: Start) -> None:
    _, trainer = await started(start_servers, 1, ROWS, ADAM)
    content = {"rows": rows_of(), "adam": (None, numbers(SIZE), numbers(2, SIZE))}
    (message,) = trainer.pieces(content)
    call = trainer.worker.call
    for name in ("0.values", "0.states", "1.values", "1.states"):
        tensor = message.tensors[name]
        for other in (tensor.astype(np.float64), tensor[..., :-1].copy()):
            wrong = said(message.fields, {**message.tensors, name: other})
            await refused(call(0, "prepare_pass", wrong), RowShapeError, name)
    ids = {**message.tensors, "0.ids": message.tensors["0.ids"][::-1].copy()}
    wrong = said(message.fields, ids)
    await refused(
        call(0, "prepare_pass", wrong), MalformedMessageError, "shards that it belongs"
    )
    await refused(call(0, "read_pass", wrong), MalformedMessageError, "shards that it belongs")
    parts = [*message.fields["parts"], message.fields["parts"][1]]
    more = {"2.values": message.tensors["1.values"], "2.states": message.tensors["1.states"]}
    twice = said({**message.fields, "parts": parts}, {**message.tensors, **more})
    await refused(call(0, "prepare_pass", twice), MalformedMessageError, "a second time")
    beyond = [{**message.fields["parts"][1], "stop": SIZE + 1}]
    for op in ("prepare_pass", "read_pass"):
        outside = said({**message.fields, "parts": beyond}, message.tensors)
        await refused(call(0, op, outside), MalformedMessageError, f"at most {SIZE}")


@pytest.mark.parametrize(
    "pieces",
    [[], 3, "no", [1], [[0]], [[0, 1, 2]], [[0, True]], [[0, 0]], [[-1, 1]], [[0, 1]] * 2],
)
async def test_a_commit_that_names_no_pieces_is_refused(
    start_servers: Start, pieces: Any
) -> None:
    _, trainer = await started(start_servers, 1, ROWS)

    commit = trainer.worker.ask("commit_pass", **{"pass": 1}, pieces=pieces)

    await refused(commit, MalformedMessageError, "commit_pass field 'pieces'")
