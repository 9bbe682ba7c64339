"""Readers of changes: all rows, then what changed, came or went since each answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.integration.pserver.following import until

from paramfleet_pserver.core.limits import TableLimits
from paramfleet_pserver.following import feed, feeds
from paramfleet_serving.jobs.assembling import Assembly
from paramfleet_serving.jobs.feed import JobFeed
from paramfleet_shared.errors.following import FeedOverError, TooManyReadersError
from paramfleet_shared.errors.served import TablesNotDeclaredError, UnknownTableError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.values.amounts import Memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

DIM = 3
ROWS = TableSpec(
    name="rows",
    kind="sparse",
    dim=DIM,
    initializer=InitializerSpec(kind="uniform", low=-1.0, high=1.0),
    optimizer=OptimizerSpec(rule="adagrad"),
)
DENSE = TableSpec(
    name="dense_0", kind="dense", size=6, parameters=(("a.weight", (2, 2)), ("a.bias", (2,)))
)


def ones(ids: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(ids, np.int64), np.ones((len(ids), DIM), np.float32)


def asked(**fields: Any) -> Request:
    return Request("feed", Message(fields=fields), "tests", None)


class Reader:
    """Keeps what one server's feed said, as a process that serves would."""

    def __init__(self, worker: Worker, name: str = "reader", server: int = 0) -> None:
        self.worker = worker
        self.name = name
        self.server = server
        self.feed = -1
        self.have = 0
        self.rows: dict[int, list[float]] = {}
        self.dense: dict[str, list[float]] = {}
        self.marks: dict[str, int] = {}
        self.tables: list[dict[str, Any]] = []

    async def ask(self, operation: str, **fields: Any) -> Message:
        fields = {"reader": self.name, "feed": self.feed, **fields}
        return await self.worker.call(self.server, operation, Message(fields=fields))

    async def begin(self) -> None:
        answer = await self.ask("feed_begin")
        self.feed, self.tables = answer.fields["feed"], answer.fields["tables"]
        self.have = 0

    async def read_all(self, count: int = 16) -> None:
        for table in self.tables:
            for block in range(table["blocks"]):
                start, places = 0, 1
                while start < places:
                    of = {"table": table["spec"]["name"], "block": block}
                    answer = await self.ask("feed_rows", start=start, count=count, **of)
                    self.put(answer.tensors["ids"], answer.tensors["rows"])
                    start, places = answer.fields["next"], answer.fields["places"]

    def put(self, ids: Any, rows: Any) -> None:
        self.rows |= dict(zip(ids.tolist(), rows.tolist(), strict=True))

    async def change(self, *, arrives: bool = True, begins: bool = True) -> bool:
        """Ask what changed, and return whether that was all."""
        fields = {"dense": self.marks, "with_dense": True, "begins": begins}
        answer = await self.ask("feed_changes", have=self.have, **fields)
        if not arrives:
            return False
        for index, _ in enumerate(answer.fields["parts"]):
            self.put(answer.tensors[f"{index}.ids"], answer.tensors[f"{index}.rows"])
            for gone in answer.tensors[f"{index}.removed"].tolist():
                self.rows.pop(gone, None)
        for index, about in enumerate(answer.fields["dense"]):
            self.marks[about["table"]] = about["mark"]
            self.dense[about["table"]] = answer.tensors[f"dense.{index}"].tolist()
        self.have = answer.fields["number"]
        return not answer.fields["left"]


async def trained(start: Start, **more: Any) -> tuple[Cluster, Worker, Reader]:
    cluster = await start(1, **more)
    worker = cluster.worker()
    await worker.declare(ROWS, DENSE)
    await worker.push({"rows": ones(range(200)), "dense_0": np.ones(6, np.float32)})
    reader = Reader(worker)
    await reader.begin()
    return cluster, worker, reader


async def assert_same(worker: Worker, reader: Reader, ids: Any) -> None:
    ids = sorted(ids)
    assert sorted(reader.rows) == ids
    rows = await worker.pull("rows", ids)
    np.testing.assert_array_equal(rows, [reader.rows[each] for each in ids])


async def test_all_rows_and_what_changed_since_are_the_tables(start_servers: Start) -> None:
    _, worker, reader = await trained(start_servers)

    await reader.read_all()
    await assert_same(worker, reader, range(200))
    assert await reader.change()
    assert reader.dense["dense_0"] == (await worker.pull("dense_0")).tolist()

    await worker.push({"rows": ones([5, 7, 300]), "dense_0": np.ones(6, np.float32)}, step=1)
    await worker.remove("rows", [8, 9], step=2)
    assert await reader.change()
    await assert_same(worker, reader, ({*range(200), 300} - {8, 9}))
    assert reader.dense["dense_0"] == (await worker.pull("dense_0")).tolist()


async def test_what_changes_while_all_is_read_is_among_the_first_changes(
    start_servers: Start,
) -> None:
    _, worker, reader = await trained(start_servers)
    await reader.ask("feed_rows", table="rows", block=0, start=0, count=50)
    await worker.push({"rows": ones(range(0, 230, 3))}, step=1)
    await worker.remove("rows", [4], step=2)
    await reader.read_all()

    await reader.change()

    await assert_same(worker, reader, {*range(200), *range(0, 230, 3)} - {4})


async def test_an_answer_that_does_not_come_is_given_again_with_what_changed_since(
    start_servers: Start,
) -> None:
    _, worker, reader = await trained(start_servers)
    await reader.read_all()
    await worker.push({"rows": ones([1, 2])}, step=1)
    await worker.remove("rows", [3], step=2)
    await reader.change(arrives=False)
    await worker.push({"rows": ones([2, 400])}, step=2)
    await reader.change(arrives=False)

    await reader.change()

    await assert_same(worker, reader, {*range(200), 400} - {3})
    assert await reader.change(), "and then there is nothing"
    await assert_same(worker, reader, {*range(200), 400} - {3})


async def test_many_changes_come_in_several_answers(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_BYTES", 40 * (8 + 4 * DIM))
    _, worker, reader = await trained(start_servers)
    await reader.read_all()
    await worker.push({"rows": ones(range(500))}, step=1)

    answers, is_all = 1, await reader.change()
    while not is_all:
        answers, is_all = answers + 1, await reader.change(begins=False)

    assert answers >= 500 // 40
    await assert_same(worker, reader, range(500))


async def test_a_row_comes_as_it_is_and_an_unchanged_dense_table_does_not(
    start_servers: Start,
) -> None:
    _, worker, reader = await trained(start_servers)
    await reader.change()
    for step in range(5):
        await worker.push({"rows": ones([5])}, step=step)

    fields = {"have": reader.have, "dense": reader.marks, "with_dense": True, "begins": True}
    answer = await reader.ask("feed_changes", **fields)

    assert answer.fields["dense"] == []
    assert answer.tensors["0.ids"].tolist() == [5]
    assert answer.tensors["0.rows"].tolist() == (await worker.pull("rows", [5])).tolist()


async def test_readers_do_not_disturb_each_other(start_servers: Start) -> None:
    _, worker, reader = await trained(start_servers)
    other = Reader(worker, "other")
    await other.begin()
    await worker.push({"rows": ones([5])}, step=1)
    await reader.change()
    await other.ask("feed_end")

    await other.begin()
    await worker.push({"rows": ones([6])}, step=2)
    await asyncio.gather(reader.change(), other.change())

    assert sorted(reader.rows) == [5, 6]
    assert sorted(other.rows) == [6]


async def test_a_feed_that_is_not_kept_or_of_other_tables_is_over(start_servers: Start) -> None:
    _, worker, reader = await trained(start_servers)
    former = reader.feed
    await reader.begin()
    mine, reader.feed = reader.feed, former
    with pytest.raises(FeedOverError, match="isn't kept"):
        await reader.change()
    reader.feed = mine
    await reader.change()

    await worker.declare(TableSpec(name="later", kind="sparse", dim=1))

    with pytest.raises(FeedOverError, match="other tables"):
        await reader.change()
    await reader.begin()
    await reader.change()


async def test_only_some_read_at_once_and_an_end_makes_room(start_servers: Start) -> None:
    _, worker, _ = await trained(start_servers)
    others = [Reader(worker, f"reader {index}") for index in range(feeds.MAX_READERS)]
    for each in others[:-1]:
        await each.begin()
    with pytest.raises(TooManyReadersError):
        await others[-1].begin()

    await others[0].ask("feed_end")
    await others[0].ask("feed_end")

    await others[-1].begin()


async def test_at_the_end_readers_that_ask_get_all_and_others_are_not_waited_for(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "ASKS_S", 0.0)
    cluster, worker, reader = await trained(start_servers)
    await cluster.routes[0].settle_readers()
    monkeypatch.setattr(feeds, "ASKS_S", 60.0)
    monkeypatch.setattr(feeds, "SETTLE_S", LATE_S)
    await worker.push({"rows": ones([5]), "dense_0": np.ones(6, np.float32)}, step=1)

    settling = asyncio.get_running_loop().create_task(cluster.routes[0].settle_readers())
    await asyncio.sleep(0)
    fields = {"have": reader.have, "dense": reader.marks, "begins": True}
    await reader.ask("feed_changes", **fields)
    await asyncio.sleep(0.05)
    assert not settling.done(), "the answer may not have come"
    answer = await reader.ask("feed_changes", **fields)
    await reader.ask("feed_end")
    await settling

    assert answer.fields["last"]
    assert answer.tensors["0.ids"].tolist() == [5]
    assert answer.tensors["dense.0"].tolist() == (await worker.pull("dense_0")).tolist()


async def test_a_pserver_that_gave_its_last_answer_is_asked_no_more(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "SETTLE_S", LATE_S)
    monkeypatch.setattr(feeds, "ASKS_S", LATE_S)
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(ROWS, DENSE)
    settings = JobSettings(insecure=True)
    reading = JobFeed(
        cluster.placement, reader="reader", settings=settings, clock=SystemClock()
    )
    await reading.begin()
    settling = asyncio.get_running_loop().create_task(cluster.routes[0].settle_readers())
    await asyncio.sleep(0)
    await reading.changes(dense=False)
    await settling
    await worker.push({"rows": ones(range(200)), "dense_0": np.ones(6, np.float32)})
    await cluster.servers[0].close()

    settling = asyncio.get_running_loop().create_task(cluster.routes[1].settle_readers())
    await asyncio.sleep(0)
    change = await reading.changes(dense=False)
    await settling

    assert reading.has_ended
    assert len(change.tables["rows"].ids) > 0
    assert change.dense.keys() == {"a.weight", "a.bias"}
    await reading.close()


async def test_what_a_given_up_question_had_taken_comes_again(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, worker, reader = await trained(start_servers)
    await reader.read_all()
    await worker.push({"rows": ones([5, 300])}, step=1)
    real, entered = feed.Feed._read, asyncio.Event()

    async def read(self: Any, *args: Any) -> Any:
        found = await real(self, *args)
        entered.set()
        await asyncio.Event().wait()
        return found

    monkeypatch.setattr(feed.Feed, "_read", read)
    asking = asyncio.get_running_loop().create_task(
        cluster.routes[0]._feeds.feed_changes(
            asked(reader="reader", feed=reader.feed, have=0, begins=True, dense={})
        )
    )
    await entered.wait()
    asking.cancel()
    await asyncio.wait((asking,))
    monkeypatch.undo()

    await reader.change()

    await assert_same(worker, reader, {*range(200), 300})


async def test_a_question_ends_however_much_changes_and_no_table_waits_for_another(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_BYTES", 10 * (8 + 4 * DIM))
    cluster = await start_servers(1)
    worker = cluster.worker()
    other = replace(ROWS, name="other")
    await worker.declare(ROWS, other)
    reader = Reader(worker)
    await reader.begin()
    await worker.push({"rows": ones(range(30)), "other": ones(range(1000, 1030))})

    step, is_all = 1, await reader.change()
    while not is_all:
        await worker.push({"rows": ones(range(30 * step, 30 * step + 30))}, step=step)
        step, is_all = step + 1, await reader.change(begins=False)

    assert {*range(30), *range(1000, 1030)} == reader.rows.keys()


async def test_a_reader_that_reads_all_rows_first_is_kept(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, worker, reader = await trained(start_servers)
    monkeypatch.setattr(feeds, "SILENCE_S", 0.2)
    cluster.routes[0]._feeds._look()
    for _ in range(20):
        await asyncio.sleep(0.05)
        await reader.ask("feed_keep")

    await worker.push({"rows": ones([5])}, step=1)
    await reader.change()
    assert 5 in reader.rows


async def test_begins_that_were_given_up_do_not_lock_readers_out(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "SILENCE_S", 0.1)
    cluster, worker, _ = await trained(start_servers)
    feeds_of = cluster.routes[0]._feeds
    held = asyncio.Event()

    async def begin(_: Any) -> None:
        await held.wait()

    monkeypatch.setattr(feed.Feed, "begin", begin)
    for index in range(feeds.MAX_READERS - 1):
        begun = feeds_of.feed_begin(asked(reader=f"reader {index}"))
        asking = asyncio.get_running_loop().create_task(begun)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait((asking,))
    monkeypatch.undo()
    monkeypatch.setattr(feeds, "SILENCE_S", 0.1)

    await until(lambda: not cluster.routes[0].facts()["readers"] and not feeds_of._turns)
    await Reader(worker, "honest").begin()


async def test_a_reader_waits_while_another_process_may_own_the_group(
    start_servers: Start,
) -> None:
    cluster, _, reader = await trained(start_servers)
    ownership = cluster.routes[0]._ownership
    ownership.fence()
    asking = asyncio.get_running_loop().create_task(reader.change())
    await asyncio.sleep(0.05)
    assert not asking.done()
    ownership.resume(ownership.term)
    await asking
    assert 5 not in reader.rows


async def test_silent_readers_are_forgotten(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "SILENCE_S", 0.05)
    cluster, _, reader = await trained(start_servers)

    await until(lambda: not cluster.routes[0].facts()["readers"])

    with pytest.raises(FeedOverError):
        await reader.change()


@pytest.mark.parametrize(
    ("operation", "fields", "error"),
    [
        ("feed_begin", {"reader": ""}, MalformedMessageError),
        ("feed_begin", {"reader": "x" * 65}, MalformedMessageError),
        ("feed_begin", {"reader": 1}, MalformedMessageError),
        ("feed_changes", {"have": -1, "dense": {}}, MalformedMessageError),
        ("feed_changes", {"have": 1 << 40, "dense": {}}, MalformedMessageError),
        ("feed_changes", {"have": 0}, MalformedMessageError),
        ("feed_changes", {"have": 0, "dense": {}, "with_dense": 1}, MalformedMessageError),
        ("feed_changes", {"have": 0, "dense": {"a": "b"}}, MalformedMessageError),
        ("feed_changes", {"have": 0, "dense": []}, MalformedMessageError),
        ("feed_rows", {"table": "no", "block": 0, "start": 0, "count": 1}, UnknownTableError),
        ("feed_rows", {"table": "rows", "block": 99, "start": 0, "count": 1},
         MalformedMessageError),
        ("feed_rows", {"table": "dense_0", "block": 0, "start": 0, "count": 1},
         MalformedMessageError),
        ("feed_rows", {"table": "rows", "block": 0, "start": 0, "count": 1 << 30},
         MalformedMessageError),
    ],
)  # fmt: skip
async def test_a_wrong_request_changes_nothing(
    start_servers: Start, operation: str, fields: dict[str, Any], error: type[Exception]
) -> None:
    _, worker, reader = await trained(start_servers)
    with pytest.raises(error):
        await reader.ask(operation, **fields)

    await worker.push({"rows": ones([5])}, step=1)
    await reader.change()
    assert sorted(reader.rows) == [5]


async def test_before_the_training_there_is_nothing_to_read(start_servers: Start) -> None:
    cluster = await start_servers(1)
    with pytest.raises(TablesNotDeclaredError):
        await Reader(cluster.worker()).begin()


async def test_dense_tables_say_which_parameters_they_hold(start_servers: Start) -> None:
    _, _, reader = await trained(start_servers)
    specs = [TableSpec.from_wire(table["spec"]) for table in reader.tables]
    assert [spec.parameters for spec in specs if spec.kind == "dense"] == [DENSE.parameters]


async def test_a_large_dense_table_comes_in_several_answers(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_DENSE", 100)
    cluster = await start_servers(2)
    worker = cluster.worker()
    large = TableSpec(name="large", kind="dense", size=1234)
    small = TableSpec(name="small", kind="dense", size=30)
    await worker.declare(ROWS, small, large)
    before = np.random.default_rng(1).normal(size=1234).astype(np.float32)
    await worker.push({"large": before, "small": np.ones(30, np.float32)})
    sizes: list[int] = []
    taken = Assembly.take

    def take(self: Assembly, answer: Message) -> Any:
        dense = [each for name, each in answer.tensors.items() if name.startswith("dense.")]
        sizes.append(sum(map(len, dense)))
        return taken(self, answer)

    monkeypatch.setattr(Assembly, "take", take)
    reading = JobFeed(
        cluster.placement,
        reader="reader",
        settings=JobSettings(insecure=True),
        clock=SystemClock(),
    )
    await reading.begin()

    change = await reading.changes(dense=True)

    assert max(sizes) <= 100
    assert sum(sizes) == 1264
    np.testing.assert_array_equal(change.dense["large"], await worker.pull("large"))
    np.testing.assert_array_equal(change.dense["small"], await worker.pull("small"))
    assert not (await reading.changes(dense=True)).dense, "nothing has changed since"
    await worker.push({"large": before, "small": np.zeros(30, np.float32)}, step=1)
    change = await reading.changes(dense=True)
    np.testing.assert_array_equal(change.dense["large"], await worker.pull("large"))
    await reading.close()


async def test_what_changes_between_two_answers_of_a_dense_table_comes_next_time(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_DENSE", 4)
    _, worker, reader = await trained(start_servers)
    ask = {"have": 0, "dense": {}, "with_dense": True, "begins": True}
    first = await reader.ask("feed_changes", **ask, dense_at={})
    (about,) = first.fields["dense"]
    assert (about["left"], len(first.tensors["dense.0"])) == (2, 4)
    await worker.push({"dense_0": np.ones(6, np.float32)}, step=1)

    ask["have"] = first.fields["number"]
    at = {"dense_0": [about["mark"], 4]}
    rest = await reader.ask("feed_changes", **ask, dense_at=at)
    ask |= {
        "have": rest.fields["number"],
        "dense": {"dense_0": rest.fields["dense"][0]["mark"]},
    }
    again = await reader.ask("feed_changes", **ask, dense_at={})

    assert (rest.fields["dense"][0]["left"], rest.fields["dense"][0]["start"]) == (0, 4)
    assert again.fields["dense"], "what was read first is older than what changed"
    with pytest.raises(MalformedMessageError, match="dense_at"):
        await reader.ask("feed_changes", **ask, dense_at={"dense_0": [1, 7]})


async def test_the_last_answer_has_all_of_a_large_dense_table(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_DENSE", 2)
    monkeypatch.setattr(feeds, "SETTLE_S", LATE_S)
    monkeypatch.setattr(feeds, "ASKS_S", LATE_S)
    cluster, worker, _ = await trained(start_servers)
    reading = JobFeed(
        cluster.placement,
        reader="other",
        settings=JobSettings(insecure=True),
        clock=SystemClock(),
    )
    await reading.begin()
    await worker.push({"dense_0": np.ones(6, np.float32)}, step=1)
    settling = asyncio.get_running_loop().create_task(cluster.routes[0].settle_readers())
    await asyncio.sleep(0)

    change = await reading.changes(dense=False)

    assert reading.has_ended
    values = np.concatenate([change.dense["a.weight"].reshape(-1), change.dense["a.bias"]])
    np.testing.assert_array_equal(values, await worker.pull("dense_0"))
    settling.cancel()
    await reading.close()


async def test_a_reader_without_memory_begins_anew_and_the_training_goes_on(
    start_servers: Start,
) -> None:
    free = [1 << 39]
    memory = partial(_memory, free)
    cluster, worker, reader = await trained(start_servers, limits=TableLimits(), memory=memory)
    free[0] = _KEPT + (1 << 33)  # enough for rows, and none of it for readers
    await worker.push({"rows": ones(range(500_000))}, step=1)

    with pytest.raises(FeedOverError, match="more memory than the pserver has for readers"):
        await reader.change()
    assert cluster.routes[0].facts()["readers"][0]["bytes"] == 0

    free[0] = 1 << 39
    await reader.begin()
    await worker.push({"rows": ones([5])}, step=2)
    await reader.read_all(count=feeds.MAX_PLACES)
    await reader.change()
    assert len(reader.rows) == 500_000


async def test_readers_lose_what_is_kept_before_rows_are_refused(start_servers: Start) -> None:
    free, others = [1 << 39], list[Any]()

    def memory() -> Memory:
        """Say that what readers keep is the last that there was."""
        kept = others[0].routes[0].facts()["readers"][0]["bytes"] if others else 0
        return Memory(total=1 << 40, free=free[0] - (kept << 20))

    cluster, worker, reader = await trained(start_servers, limits=TableLimits(), memory=memory)
    await worker.push({"rows": ones(range(100_000))}, step=1)
    others.append(cluster)
    free[0] = _KEPT + (1 << 33)

    await worker.push({"rows": ones(range(100_000, 400_000))}, step=2)

    with pytest.raises(FeedOverError, match="for readers"):
        await reader.change()


_KEPT = round((1 << 40) * (1 - TableLimits().memory_share))


def _memory(free: list[int]) -> Memory:
    return Memory(total=1 << 40, free=free[0])


async def test_a_reader_is_told_of_rows_that_a_worker_writes(start_servers: Start) -> None:
    _, worker, reader = await trained(start_servers)
    await reader.read_all()
    ids = np.array([3, 150, 4000])

    await worker.write("rows", (ids, np.full((3, DIM), 2.5, np.float32)), step=1)

    assert await reader.change()
    assert [reader.rows[key] for key in ids.tolist()] == [[2.5] * DIM] * 3
