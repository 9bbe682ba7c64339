"""``remove``: rows go from all pservers, once, and what names them later begins them anew."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.checkpoint.manifest import (
    Manifest,
    SavedFile,
    SavedTable,
    write_manifest,
)
from paramfleet_shared.errors.served import (
    FencedError,
    NotAMemberError,
    OperationModeError,
    StepBegunError,
    StepTooEarlyError,
    TablesDamagedError,
    TablesNotDeclaredError,
    UnknownWorkerError,
)
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.testing.faults import FaultPlan
from paramfleet_shared.values.ids import Step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

DIM = 3
FIRST = InitializerSpec(kind="uniform", low=-1.0, high=1.0)
ADAGRAD = OptimizerSpec(rule="adagrad")
ROWS = TableSpec(name="rows", kind="sparse", dim=DIM, initializer=FIRST, optimizer=ADAGRAD)
OTHER = TableSpec(name="other", kind="sparse", dim=DIM, initializer=FIRST)
SUMS = TableSpec(
    name="rows",
    kind="sparse",
    dim=DIM,
    initializer=FIRST,
    optimizer=OptimizerSpec(rule="sum"),
)
IDS = np.arange(200)


def ones(ids: Any = IDS) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(ids, np.int64), np.ones((len(ids), DIM), np.float32)


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def num_rows(cluster: Cluster, table: str = "rows") -> int:
    facts = [each for routes in cluster.routes for each in routes.facts()["tables"]]
    return sum(each["rows"] for each in facts if each["name"] == table)


async def trained(start: Start, num_servers: int = 2, **more: Any) -> tuple[Cluster, Worker]:
    """Return servers with rows that were pushed twice by one worker of async."""
    cluster = await start(num_servers, **more)
    worker = cluster.worker()
    await worker.declare(ROWS, OTHER)
    for step in range(2):
        await worker.push({"rows": ones(), "other": ones()}, step=step)
    return cluster, worker


@pytest.mark.parametrize("num_servers", [1, 3])
async def test_removed_rows_begin_anew_and_no_others(
    start_servers: Start, num_servers: int
) -> None:
    cluster, worker = await trained(start_servers, num_servers)
    before = await worker.pull("rows", IDS.tolist())

    assert await worker.remove("rows", range(50), step=2) == 50

    assert (num_rows(cluster), num_rows(cluster, "other")) == (150, 200)
    after = await worker.pull("rows", IDS.tolist())
    np.testing.assert_array_equal(after[:50], initial_rows(ROWS, IDS[:50]))
    np.testing.assert_array_equal(after[50:], before[50:])
    assert num_rows(cluster) == 150, "a look creates no row"
    await worker.push({"rows": ones(range(50)), "other": ones([])}, step=2, lr=0.5)
    stepped = await worker.pull("rows", range(50))
    first = initial_rows(ROWS, IDS[:50]) - np.float32(0.5)  # of Adagrad the first step is lr
    np.testing.assert_allclose(stepped, first, atol=1e-6)


async def test_ids_without_a_row_have_no_effect_and_count_for_none(
    start_servers: Start,
) -> None:
    cluster, worker = await trained(start_servers)

    assert await worker.remove("rows", []) == 0
    assert await worker.remove("rows", [10**15, -3]) == 0
    assert await worker.remove("rows", [7, 7, 10**15, 8, 7]) == 2
    assert await worker.remove("rows", [7, 8]) == 0

    assert num_rows(cluster) == 198


async def test_a_removal_whose_answer_was_lost_is_executed_once_and_counts_the_same(
    start_servers: Start,
) -> None:
    plan = FaultPlan().drop_reply(of="remove", nth=1).duplicate_request(of="remove", nth=4)
    cluster, worker = await trained(start_servers, faults=plan)

    assert await worker.remove("rows", range(20)) == 20
    assert await worker.remove("rows", range(20, 30)) == 10

    assert len(plan.fired) == 2
    assert num_rows(cluster) == 170


async def test_a_late_copy_of_a_removal_takes_no_row_that_came_again(
    start_servers: Start,
) -> None:
    cluster, worker = await trained(start_servers)
    messages = worker.remove_messages("rows", range(20), step=2)
    first = await worker.send("remove", messages)
    await worker.push({"rows": ones(), "other": ones([])}, step=2)
    held = await worker.pull("rows", IDS.tolist())

    again = await worker.send("remove", messages)

    assert [a.fields["removed"] for a in again] == [a.fields["removed"] for a in first]
    np.testing.assert_array_equal(await worker.pull("rows", IDS.tolist()), held)
    await worker.remove("rows", [199])
    (later, *_) = await worker.send("remove", messages)
    assert later.fields["removed"] == 0, "its worker has had the answer of a later one"
    assert num_rows(cluster) == 199


async def test_who_may_not_remove_is_refused_and_nothing_is_removed(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    worker, newer = cluster.worker(), cluster.worker(incarnation=2)
    with pytest.raises(TablesNotDeclaredError):
        await worker.remove("rows", [1])
    await worker.declare(ROWS)
    await worker.push({"rows": ones()})
    with pytest.raises(UnknownWorkerError):
        await cluster.worker(rank=5).remove("rows", [1])
    await newer.declare(ROWS)
    with pytest.raises(FencedError):
        await worker.remove("rows", [1])
    await newer.ask("leave", step=1)
    with pytest.raises((UnknownWorkerError, FencedError)):
        await newer.remove("rows", [1])

    assert num_rows(cluster) == 200


async def test_of_damaged_tables_nothing_is_removed(start_servers: Start) -> None:
    cluster, worker = await trained(start_servers, 1)
    training = cluster.routes[0]._trained("remove")
    training.mode.note_damage(Step(1), RuntimeError("full"))

    with pytest.raises(TablesDamagedError):
        await worker.remove("rows", [1])

    assert num_rows(cluster) == 200


async def started_in_step(start: Start) -> tuple[Cluster, list[Worker]]:
    """Return two workers of sync that have taken a step."""
    cluster = await start(2)
    workers = [cluster.worker(rank) for rank in range(2)]
    for worker in workers:
        await worker.declare(ROWS, OTHER, mode="sync", worker_num=2)
    for worker in workers:
        await worker.push({"rows": ones(), "other": ones()}, step=0)
    await workers[0].pull("rows", [0], min_version=1)
    return cluster, workers


async def test_in_sync_rows_are_removed_between_two_steps_alone(start_servers: Start) -> None:
    cluster, (ada, bob) = await started_in_step(start_servers)

    assert await ada.remove("rows", range(10), step=1) == 10
    assert await bob.remove("rows", range(5, 20), step=1) == 10
    with pytest.raises(StepTooEarlyError):
        await ada.remove("rows", [30], step=2)
    await bob.push({"rows": ones(range(5)), "other": ones([])}, step=1)
    with pytest.raises(StepBegunError, match="worker 1 has pushed already"):
        await ada.remove("rows", [30], step=1)
    assert num_rows(cluster) == 180

    await ada.push({"rows": ones(range(5)), "other": ones([])}, step=1)
    stepped = await ada.pull("rows", range(10), min_version=2)
    first = initial_rows(ROWS, IDS[:10])
    np.testing.assert_array_equal(stepped[5:], first[5:])
    assert (stepped[:5] != first[:5]).all()


async def test_in_sync_a_removal_that_comes_late_a_second_time_is_answered_as_before(
    start_servers: Start,
) -> None:
    _, (ada, bob) = await started_in_step(start_servers)
    messages = ada.remove_messages("rows", range(10), step=1)
    first = await ada.send("remove", messages)
    for worker in (ada, bob):
        await worker.push({"rows": ones(), "other": ones()}, step=1)

    again = await ada.send("remove", messages)

    assert [a.fields["removed"] for a in again] == [a.fields["removed"] for a in first]
    assert len(await ada.pull("rows", range(10), min_version=2)) == 10


async def test_in_sync_a_worker_that_left_removes_nothing(start_servers: Start) -> None:
    cluster, (ada, _) = await started_in_step(start_servers)
    await ada.ask("leave", step=1)

    with pytest.raises((NotAMemberError, UnknownWorkerError, FencedError)):
        await ada.remove("rows", [1], step=1)

    assert num_rows(cluster) == 200


async def test_ids_that_pservers_keep_by_number_stay_the_same_ids(
    start_servers: Start,
) -> None:
    """Small tables of sync name the pull that had their ids, not the rows' places."""
    _, worker = await trained(start_servers, 1)
    positions, tensors = worker.part_of(0, 0, "rows", IDS[:50])
    parts: list[dict[str, Any]] = [{"table": "rows", "create": False, "keep": 9}]
    fields = {"rank": 0, "incarnation": worker.incarnation, "min_version": 0}
    await worker.call(0, "pull", Message(fields={**fields, "parts": parts}, tensors=tensors))
    await worker.remove("rows", range(0, 50, 2), step=2)
    await worker.push({"rows": ones(range(1000, 1025)), "other": ones([])}, step=2)

    parts = [{"table": "rows", "ids": "pulled", "of": "rows", "pulled": 9}]
    (answer,) = [await worker.call(0, "pull", Message(fields={**fields, "parts": parts}))]

    expected = await worker.pull("rows", range(50))
    np.testing.assert_array_equal(answer.tensors["0.rows"], expected[positions])


async def test_a_removal_waits_while_pushes_are_held_for_a_save(
    start_servers: Start, tmp_path: Path
) -> None:
    cluster = await start_servers(2)
    saver, other = (cluster.worker(rank) for rank in range(2))
    for worker in (saver, other):
        await worker.declare(ROWS, worker_num=2)
    await other.push({"rows": ones()})
    here, there = other.remove_messages("rows", range(100), step=1)
    await other.call(0, "remove", here)
    hold: dict[str, Any] = {"cut": "a", "for_s": 30.0}

    answers = await saver.ask("hold", targets=[], **hold)
    taken = [answer.fields["taken"] for answer in answers]
    late = begin(other.call(1, "remove", there))
    after = begin(other.remove("rows", range(100, 200), step=1))
    await asyncio.sleep(0.05)
    assert not late.done(), "the servers don't hold the same yet"
    await saver.ask("hold", targets=[[1, 1, 2]], **hold)
    await late
    answers = await saver.ask("save", dirname=str(tmp_path), cut="a")

    assert taken[0] != taken[1]
    assert [answer.fields["held"] for answer in answers] == [True, True]
    assert sum(file["rows"] for a in answers for file in a.fields["files"]) == 100
    assert await after == 100
    assert num_rows(cluster) == 0


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
async def test_a_checkpoint_after_a_removal_loads_on_other_servers(
    start_servers: Start, tmp_path: Path, before: int, after: int
) -> None:
    _, worker = await trained(start_servers, before)
    await worker.remove("rows", range(0, 200, 2), step=2)
    await worker.push({"rows": ones([0, 2, 1000]), "other": ones([])}, step=2)
    held = await worker.pull("rows", [*IDS.tolist(), 1000])
    answers = await worker.ask("save", dirname=str(tmp_path))
    files = [SavedFile.from_wire(w) for a in answers for w in a.fields["files"]]
    tables = tuple(SavedTable.from_wire(w) for w in answers[0].fields["tables"])
    write_manifest(tmp_path, Manifest(tables=tables, files=tuple(files)))

    cluster = await start_servers(after)
    other = cluster.worker()
    await other.ask("load", dirname=str(tmp_path))
    await other.declare(ROWS, OTHER)

    assert num_rows(cluster) == 103
    np.testing.assert_array_equal(await other.pull("rows", [*IDS.tolist(), 1000]), held)
    for each in (worker, other):
        await each.push({"rows": ones(), "other": ones()}, step=3)
    np.testing.assert_array_equal(
        await other.pull("rows", IDS.tolist()), await worker.pull("rows", IDS.tolist())
    )


async def test_geo_workers_receive_that_rows_are_gone_and_what_came_after(
    start_servers: Start,
) -> None:
    cluster = await start_servers(2)
    ada, bob = (cluster.worker(rank) for rank in range(2))
    for worker in (ada, bob):
        await worker.declare(SUMS, mode="geo", worker_num=2)
    nothing = ones([])
    await ada.exchange({"rows": ones()}, step=1)
    await bob.exchange({"rows": nothing}, step=1)
    await bob.exchange({"rows": nothing}, step=2)

    assert await ada.remove("rows", [1, 2, 3], step=1) == 3
    await bob.exchange({"rows": ones([2])}, step=3)  # it had sent that before it was answered
    first = await ada.exchange({"rows": nothing}, step=2)

    assert first["rows"].removed == {1, 2, 3}
    assert sorted(first["rows"].rows) == [2]
    expected = initial_rows(SUMS, np.array([2]))[0] + 1
    np.testing.assert_allclose(first["rows"].rows[2], expected, rtol=1e-6)
    assert num_rows(cluster) == 198


async def test_a_removal_while_an_exchange_is_answered_is_in_the_next_answer(
    start_servers: Start,
) -> None:
    plan = FaultPlan().delay_reply(of="exchange", nth=3)
    cluster = await start_servers(1, faults=plan)
    ada, bob = (cluster.worker(rank) for rank in range(2))
    for worker in (ada, bob):
        await worker.declare(SUMS, mode="geo", worker_num=2)
    await ada.exchange({"rows": ones()}, step=1)
    await bob.exchange({"rows": ones([])}, step=1)
    exchanging = begin(bob.exchange({"rows": ones([4])}, step=2))
    await plan.held_reply(of="exchange", nth=3).held.wait()

    assert await ada.remove("rows", [4, 5], step=1) == 2
    plan.held_reply(of="exchange", nth=3).release()

    assert not (await exchanging)["rows"].removed
    assert (await bob.exchange({"rows": ones([])}, step=3))["rows"].removed == {4, 5}
    assert not (await bob.exchange({"rows": ones([])}, step=4))["rows"].removed


async def test_memory_of_removed_rows_serves_new_ones(start_servers: Start) -> None:
    cluster, worker = await trained(start_servers, 1)
    await worker.push({"rows": ones(range(50_000)), "other": ones([])}, step=2)
    (before,) = [t["bytes"] for t in cluster.routes[0].facts()["tables"] if t["name"] == "rows"]

    for turn in range(1, 4):
        gone = range(50_000 * (turn - 1), 50_000 * turn)
        assert await worker.remove("rows", gone, step=2) == 50_000
        fresh = range(50_000 * turn, 50_000 * (turn + 1))
        await worker.push({"rows": ones(fresh), "other": ones([])}, step=2 + turn)

    (after,) = [t["bytes"] for t in cluster.routes[0].facts()["tables"] if t["name"] == "rows"]
    assert num_rows(cluster) == 50_000
    assert after <= 1.1 * before


async def test_localsgd_of_rows_has_the_operation_and_status_has_none(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(SUMS, mode="localsgd")
    await worker.exchange({"rows": ones()}, step=1)
    with pytest.raises(OperationModeError, match="push"):
        await worker.push({"rows": ones()})

    assert await worker.remove("rows", range(10), step=1) == 10
