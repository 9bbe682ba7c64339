"""``write``: rows get values on all pservers, once, and keep their optimizer states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.errors.served import (
    FencedError,
    NonFiniteValuesError,
    StepBegunError,
    StepTooEarlyError,
    UnknownWorkerError,
)
from paramfleet_shared.net.wire.limits import most_written_rows
from paramfleet_shared.net.wire.message import MalformedMessageError
from paramfleet_shared.tables.memory.reservation import CapacityError
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import EntrySpec, InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.testing.faults import FaultPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

DIM = 3
FIRST = InitializerSpec(kind="uniform", low=-1.0, high=1.0)
ADAGRAD = OptimizerSpec(rule="adagrad")
ROWS = TableSpec(name="rows", kind="sparse", dim=DIM, initializer=FIRST, optimizer=ADAGRAD)
SUMS = TableSpec(
    name="rows",
    kind="sparse",
    dim=DIM,
    initializer=FIRST,
    optimizer=OptimizerSpec(rule="sum"),
)
FLAT = TableSpec(name="flat", kind="dense", size=4)
IDS = np.arange(100)


def of(ids: Any, value: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    wanted = np.asarray(ids, np.int64)
    return wanted, np.full((len(wanted), DIM), value, np.float32)


def values_of(ids: Any) -> tuple[np.ndarray, np.ndarray]:
    wanted = np.asarray(ids, np.int64)
    return wanted, np.random.default_rng(1).normal(size=(len(wanted), DIM)).astype(np.float32)


def num_rows(cluster: Cluster) -> int:
    facts = [each for routes in cluster.routes for each in routes.facts()["tables"]]
    return sum(each["rows"] for each in facts if each["name"] == "rows")


async def trained(start: Start, num_servers: int = 2, **more: Any) -> tuple[Cluster, Worker]:
    """Return servers with 100 rows that one worker of async has pushed twice."""
    cluster = await start(num_servers, **more)
    worker = cluster.worker()
    await worker.declare(ROWS, FLAT)
    for step in range(2):
        await worker.push({"rows": of(IDS), "flat": np.ones(4, np.float32)}, step=step)
    return cluster, worker


@pytest.mark.parametrize("num_servers", [1, 3])
async def test_written_rows_have_the_values_and_keep_their_states(
    start_servers: Start, num_servers: int
) -> None:
    cluster, worker = await trained(start_servers, num_servers)
    before = await worker.pull("rows", IDS.tolist())
    given = values_of([*range(50), *range(1000, 1010)])

    await worker.write("rows", given, step=2)

    np.testing.assert_array_equal(await worker.pull("rows", given[0].tolist()), given[1])
    after = await worker.pull("rows", range(50, 100))
    np.testing.assert_array_equal(after, before[50:])
    assert num_rows(cluster) == 110
    flat = np.ones(4, np.float32)
    await worker.push({"rows": of(given[0]), "flat": flat}, step=2, lr=1.0)
    moved = given[1] - await worker.pull("rows", given[0].tolist())
    np.testing.assert_allclose(moved[:50], 3**-0.5, atol=1e-6)  # Adagrad's third step
    np.testing.assert_allclose(moved[50:], 1.0, atol=1e-6)  # and its first


async def test_a_write_whose_answer_was_lost_takes_no_value_that_came_later(
    start_servers: Start,
) -> None:
    plan = FaultPlan().drop_reply(of="write", nth=1)
    _, worker = await trained(start_servers, faults=plan)
    messages = worker.write_messages("rows", of(range(20)), step=2)
    await worker.send("write", messages)
    await worker.write("rows", of(range(10), 5.0), step=2)

    await worker.send("write", messages)

    assert len(plan.fired) == 1
    found = await worker.pull("rows", range(20))
    np.testing.assert_array_equal(found[:10], 5.0)
    np.testing.assert_array_equal(found[10:], 1.0)


async def test_a_write_without_room_for_its_new_rows_writes_none(start_servers: Start) -> None:
    cluster, worker = await trained(start_servers, 1)
    table = cluster.routes[0]._store.find("rows")
    assert isinstance(table, SparseTable)
    small = cluster.routes[0]._store.build(ROWS)
    assert isinstance(small, SparseTable)
    small.blocks = tuple(
        block._replace(rows=SparseShard(ROWS, max_rows=20)) for block in small.blocks
    )
    table.adopt(small)
    await worker.write("rows", of(range(20)), step=2)

    with pytest.raises(CapacityError):
        await worker.write("rows", of(range(200), 7.0), step=2)

    np.testing.assert_array_equal(await worker.pull("rows", range(20)), 1.0)
    assert num_rows(cluster) == 20
    await worker.write("rows", of(range(20), 7.0), step=2)
    np.testing.assert_array_equal(await worker.pull("rows", range(20)), 7.0)


async def test_what_can_not_be_written_is_refused_and_nothing_is_written(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    worker, newer = cluster.worker(), cluster.worker(incarnation=2)
    ctr = TableSpec(name="ctr", kind="sparse", dim=5, optimizer=OptimizerSpec(rule="ctr"))
    await worker.declare(ROWS, FLAT, ctr)
    for wrong in (np.nan, np.inf, 2.0**51):
        with pytest.raises(NonFiniteValuesError):
            await worker.write("rows", of([1, 2], wrong))
    with pytest.raises(MalformedMessageError, match="without an accessor"):
        await worker.write("ctr", (np.array([1]), np.ones((1, 5), np.float32)))
    with pytest.raises(RowShapeError):
        await worker.write("rows", (np.array([1]), np.ones((1, 2), np.float32)))
    with pytest.raises(UnknownWorkerError):
        await cluster.worker(rank=5).write("rows", of([1]))
    await newer.declare(ROWS, FLAT, ctr)
    with pytest.raises(FencedError):
        await worker.write("rows", of([1]))

    assert num_rows(cluster) == 0


async def test_rows_are_written_whatever_the_entry_says(start_servers: Start) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    entry = EntrySpec(kind="count_filter", value=5)
    spec = TableSpec(name="rows", kind="sparse", dim=DIM, initializer=FIRST, entry=entry)
    await worker.declare(spec)

    await worker.write("rows", of(range(7)))

    np.testing.assert_array_equal(await worker.pull("rows", range(7)), 1.0)
    (facts,) = cluster.routes[0].facts()["tables"]
    assert (facts["rows"], facts["admitted"], facts["refused"]) == (7, 7, 0)


async def test_in_sync_rows_are_written_between_two_steps_alone(start_servers: Start) -> None:
    cluster = await start_servers(2)
    ada, bob = (cluster.worker(rank) for rank in range(2))
    for worker in (ada, bob):
        await worker.declare(ROWS, mode="sync", worker_num=2)
    for worker in (ada, bob):
        await worker.push({"rows": of(IDS)}, step=0)
    await ada.pull("rows", [0], min_version=1)

    await ada.write("rows", of(range(10)), step=1)
    with pytest.raises(StepTooEarlyError):
        await ada.write("rows", of(range(10), 2.0), step=2)
    await bob.push({"rows": of([])}, step=1)
    with pytest.raises(StepBegunError, match="worker 1 has pushed already"):
        await ada.write("rows", of(range(10), 3.0), step=1)

    np.testing.assert_array_equal(await ada.pull("rows", range(10)), 1.0)


async def test_first_rows_are_written_to_a_new_table_alone(start_servers: Start) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(ROWS)
    first, only = {"only_if_new": True}, {"only_if_new": True, "is_last": True}

    for _ in range(2):  # a process that died between two pieces, and the next one
        answers = await worker.write("rows", of(range(30)), **first)
        assert [answer.fields["is_due"] for answer in answers] == [True, True]
    await worker.write("rows", of(range(30, 60)), **only)
    answers = await worker.write("rows", of(range(60), 7.0), **first)

    assert [answer.fields["is_due"] for answer in answers] == [False, False]
    np.testing.assert_array_equal(await worker.pull("rows", range(60)), 1.0)
    assert num_rows(cluster) == 60


async def test_first_rows_leave_a_table_that_was_trained(start_servers: Start) -> None:
    _, worker = await trained(start_servers)
    before = await worker.pull("rows", IDS.tolist())

    await worker.write("rows", of(IDS, 9.0), step=2, only_if_new=True, is_last=True)

    np.testing.assert_array_equal(await worker.pull("rows", IDS.tolist()), before)


async def test_other_workers_of_geo_receive_what_is_written_and_all_receive_first_rows(
    start_servers: Start,
) -> None:
    cluster = await start_servers(2)
    ada, bob = (cluster.worker(rank) for rank in range(2))
    for worker in (ada, bob):
        await worker.declare(SUMS, mode="geo", worker_num=2)
    nothing = of([])
    await ada.write("rows", of(range(40)), only_if_new=True, is_last=True)
    for worker in (ada, bob):
        found = (await worker.exchange({"rows": nothing}, step=1))["rows"].rows
        assert sorted(found) == [*range(40)]

    await ada.write("rows", of(range(30, 50), 4.0), step=1)
    own = await ada.exchange({"rows": nothing}, step=2)
    others = await bob.exchange({"rows": of([31], 0.5)}, step=2)

    assert not own["rows"].rows, "it has written them itself"
    found = others["rows"].rows
    assert sorted(found) == [*range(30, 50)]
    np.testing.assert_array_equal(found[31], 4.5)
    np.testing.assert_array_equal(found[49], 4.0)


async def test_more_rows_than_one_request_may_have_are_refused(start_servers: Start) -> None:
    cluster, worker = await trained(start_servers, 1)
    most = most_written_rows(DIM)

    with pytest.raises(
        MalformedMessageError, match="65,537 rows of dim 3, and may have 65,536"
    ):
        await worker.write("rows", of(np.arange(most + 1)), step=2)

    assert num_rows(cluster) == len(IDS)
    await worker.write("rows", of(np.arange(most)), step=2)
    assert num_rows(cluster) == most
    assert most_written_rows(1 << 16) == 64, "16 MiB"
