"""Async training: a push is applied when it arrives, once, or refused without effect."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.core.identities import MAX_LATER
from paramfleet_pserver.tables.owners import Job
from paramfleet_shared.errors.served import (
    FencedError,
    ModeMismatchError,
    NonFiniteGradientError,
    OperationModeError,
    SequenceTooEarlyError,
    ShowCountError,
    TablesNotDeclaredError,
    TurnTimeoutError,
    UnknownTableError,
    UnknownWorkerError,
)
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rowstore import RowShapeError, initial_rows
from paramfleet_shared.tables.spec import (
    InitializerSpec,
    OptimizerSpec,
    TableMismatchError,
    TableSpec,
)
from paramfleet_shared.testing.faults import FaultPlan
from paramfleet_shared.testing.patience import LATE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

ROWS = TableSpec(name="rows", kind="sparse", dim=4)
FLAT = TableSpec(name="flat", kind="dense", size=21)
COUNTED = TableSpec(name="counted", kind="sparse", dim=4, optimizer=OptimizerSpec(rule="ctr"))
NORMAL = TableSpec(
    name="normal", kind="sparse", dim=3, seed=7, initializer=InitializerSpec(kind="normal")
)


def one_row(value: float = 1.0, row: int = 5) -> tuple[np.ndarray, np.ndarray]:
    return np.array([row], np.int64), np.full((1, 4), value, np.float32)


async def started(start: Start, *specs: TableSpec, **terms: object) -> Worker:
    worker = (await start(1)).worker()
    await worker.declare(*specs, **terms)  # type: ignore[arg-type]  # passed through
    return worker


async def test_a_push_moves_the_rows_on_every_server_at_once(start_servers: Start) -> None:
    worker = (await start_servers(3)).worker()
    await worker.declare(ROWS, FLAT)
    ids = np.arange(0, 9000, 3, dtype=np.int64)
    grads = np.arange(len(ids) * 4, dtype=np.float32).reshape(-1, 4)

    replies = await worker.push({"rows": (ids, grads), "flat": np.ones(21, np.float32)}, lr=0.5)

    np.testing.assert_array_equal(await worker.pull("rows", ids.tolist()), -0.5 * grads)
    np.testing.assert_array_equal(await worker.pull("flat"), np.full(21, -0.5, np.float32))
    assert all(reply.fields["versions"] == [1, 1] for reply in replies)
    assert all(reply.fields["duplicate"] is False for reply in replies)
    assert all(reply.fields["slowest"] is None for reply in replies)


async def test_unknown_rows_have_their_first_value_whether_created_or_not(
    start_servers: Start,
) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(NORMAL)
    ids = [3, 99, 3, 12345678901234]

    read = await worker.pull("normal", ids, create=False)
    assert sum(routes.facts()["tables"][0]["rows"] for routes in cluster.routes) == 0
    created = await worker.pull("normal", ids, create=True)

    expected = initial_rows(NORMAL, np.array(ids, np.int64))
    np.testing.assert_array_equal(read, expected)
    np.testing.assert_array_equal(created, expected)
    assert sum(routes.facts()["tables"][0]["rows"] for routes in cluster.routes) == 3


async def test_each_applied_push_counts_as_one_version_and_one_adam_step(
    start_servers: Start,
) -> None:
    adam = OptimizerSpec(rule="adam")
    worker = await started(
        start_servers, TableSpec(name="rows", kind="sparse", dim=4, optimizer=adam)
    )

    first = await worker.push({"rows": one_row()}, lr=0.1)
    (status,) = await worker.ask("status")
    second = await worker.push({"rows": one_row()}, lr=0.1)

    versions = [reply.fields["versions"] for reply in (*first, *second)]
    assert versions == [[1], [2]]
    np.testing.assert_allclose(await worker.pull("rows", [5]), np.full((1, 4), -0.2), rtol=1e-5)
    assert status.fields["tables"][0] | {"bytes": 0, "shards": []} == {
        "name": "rows",
        "kind": "sparse",
        "rows": 1,
        "bytes": 0,
        "admitted": 0,
        "refused": 0,
        "removed": 0,
        "pulls": 0,
        "pushes": 1,
        "version": 1,
        "guarded": 0,
        "shortened": 0,
        "rate_power": 0.0,
        "tier": "memory",
        "shards": [],
    }
    assert status.fields["members"] == [{"rank": 0, "steps": 1}]
    assert (status.fields["mode"], status.fields["parked"]) == ("async", 0)


async def test_a_retried_push_is_a_success_and_is_applied_once(start_servers: Start) -> None:
    worker = await started(start_servers, ROWS)
    (message,) = worker.push_messages({"rows": one_row()}, step=0)

    await worker.call(0, "push", message)
    again = await worker.call(0, "push", message)

    assert again.fields["duplicate"] is True
    np.testing.assert_array_equal(await worker.pull("rows", [5]), -one_row()[1])


async def test_a_repeated_push_is_answered_when_the_original_is_applied(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(ROWS)
    owners, gate = cluster.routes[0]._owners, threading.Event()

    def wait() -> None:
        gate.wait(timeout=LATE_S)

    held = owners.start(Job(owner, 1 << 20, wait) for owner in range(len(owners)))
    (message,) = worker.push_messages({"rows": one_row()}, step=0)

    async with asyncio.TaskGroup() as tasks:
        original = tasks.create_task(worker.call(0, "push", message))
        repeated = tasks.create_task(worker.call(0, "push", message))
        for _ in range(3):  # each comes after both pushes, and after what they answered
            await worker.call(0, "status", Message(fields={}, tensors={}))
        assert not original.done()
        assert not repeated.done()
        gate.set()
    await held

    duplicates = [task.result().fields["duplicate"] for task in (original, repeated)]
    assert sorted(duplicates) == [False, True]
    np.testing.assert_array_equal(await worker.pull("rows", [5]), -one_row()[1])


async def test_a_push_whose_answer_was_lost_is_applied_once(start_servers: Start) -> None:
    plan = FaultPlan().drop_reply(of="push", nth=1).duplicate_request(of="push", nth=3)
    cluster = await start_servers(1, faults=plan)
    worker = cluster.worker()
    await worker.declare(ROWS)

    for step in range(3):
        await worker.push({"rows": one_row()}, step=step)

    assert len(plan.fired) == 2
    np.testing.assert_array_equal(await worker.pull("rows", [5]), -3 * one_row()[1])


def one_after_another(worker: Worker, num: int) -> list[Message]:
    """Return pushes to a server whose worker doesn't wait for the answers of those before."""
    messages = []
    for step in range(num):
        (message,) = worker.push_messages({"rows": one_row(2.0**step)}, step=step)
        fields = {**message.fields, **({"first": step} if step else {})}
        messages.append(Message(fields=fields, tensors=message.tensors))
    return messages


async def test_pushes_on_their_way_at_once_are_taken_once_each(start_servers: Start) -> None:
    plan = FaultPlan().drop_reply(of="push", nth=3).drop_request(of="push", nth=5)
    plan.duplicate_request(of="push", nth=2)
    cluster = await start_servers(1)
    worker = cluster.worker(faults=plan)
    await worker.declare(ROWS, worker_num=2, max_staleness=0)

    async with asyncio.TaskGroup() as tasks:
        for message in one_after_another(worker, 8):
            tasks.create_task(worker.call(0, "push", message))

    assert len(plan.fired) == 3
    np.testing.assert_array_equal(await worker.pull("rows", [5]), -one_row(255.0)[1])
    (status,) = await worker.ask("status")
    assert status.fields["members"][0] == {"rank": 0, "steps": 8}


async def test_pushes_in_another_order_are_neither_lost_nor_counted_early(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = cluster.worker(0), cluster.worker(1)
    for worker in (ada, bob):
        await worker.declare(ROWS, worker_num=2, max_staleness=0)
    zeroth, first, second = one_after_another(ada, 3)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(bob.ask("wait_turn", step=1))
        await cluster.until(lambda facts: facts["parked"] == 1)

        await ada.call(0, "push", second)
        await ada.call(0, "push", first)
        (status,) = await ada.ask("status")
        assert not waiting.done(), "step 0 isn't applied"
        assert [member["steps"] for member in status.fields["members"]] == [0, 0]

        answer = await ada.call(0, "push", zeroth)

    assert answer.fields["duplicate"] is False
    (status,) = await ada.ask("status")
    assert [member["steps"] for member in status.fields["members"]] == [3, 0]
    np.testing.assert_array_equal(await ada.pull("rows", [5]), -one_row(7.0)[1])


async def test_the_first_step_of_a_push_is_none_after_its_last(start_servers: Start) -> None:
    worker = await started(start_servers, ROWS)
    (message,) = worker.push_messages({"rows": one_row()}, step=3)

    wrong = Message(fields={**message.fields, "first": 4}, tensors=message.tensors)
    with pytest.raises(MalformedMessageError, match="'first'"):
        await worker.call(0, "push", wrong)


async def test_a_restarted_worker_fences_its_former_self(start_servers: Start) -> None:
    cluster = await start_servers(1)
    old, new = cluster.worker(incarnation=1), cluster.worker(incarnation=2)
    await old.declare(ROWS)
    await old.push({"rows": one_row()})

    await new.declare(ROWS)
    (fresh,) = await new.push({"rows": one_row()})

    assert fresh.fields["duplicate"] is False
    with pytest.raises(FencedError) as caught:
        await old.push({"rows": one_row()})
    assert caught.value.remote
    with pytest.raises(FencedError):
        await old.declare(ROWS)
    np.testing.assert_array_equal(await new.pull("rows", [5]), -2 * one_row()[1])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
async def test_a_push_with_numbers_that_are_not_finite_changes_nothing(
    start_servers: Start, poison: float
) -> None:
    worker = await started(start_servers, ROWS, FLAT)
    flat = np.ones(21, np.float32)
    flat[3] = flat[17] = poison

    with pytest.raises(NonFiniteGradientError) as caught:
        await worker.push({"rows": one_row(), "flat": flat}, step=4)

    error = caught.value
    assert (error.table, error.rank, error.step, error.count) == ("flat", 0, 4, 2)
    np.testing.assert_array_equal(await worker.pull("rows", [5]), np.zeros((1, 4), np.float32))
    np.testing.assert_array_equal(await worker.pull("flat"), np.zeros(21, np.float32))


@pytest.mark.parametrize("counts", [(0, 0), (-1, 0), (1, -1)])
async def test_rows_with_counts_that_no_use_makes_change_nothing(
    start_servers: Start, counts: tuple[float, float]
) -> None:
    worker = await started(start_servers, COUNTED)
    rows = np.array([[1, 0, 1, 1], [*counts, 1, 1]], np.float32)

    with pytest.raises(ShowCountError) as caught:
        await worker.push({"counted": (np.array([5, 6]), rows)})

    assert (caught.value.table, caught.value.count) == ("counted", 1)
    np.testing.assert_array_equal(
        await worker.pull("counted", [5, 6]), np.zeros((2, 4), np.float32)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"block": 99},
        {"now": 1 << 40},
        {"count": 1 << 40},
        {"start": -1},
        {"now": 0.5},
        {"below": -1},
        {"below": 1 << 61},
        {"below": None, "low": 1 << 61, "shift": 0},
        {"below": None, "low": 0, "shift": 49},
        {"below": None},
        {"table": "plain"},
    ],
)
async def test_a_survey_that_makes_no_sense_is_refused(
    start_servers: Start, wrong: dict[str, Any]
) -> None:
    plain = TableSpec(name="plain", kind="sparse", dim=2)
    worker = await started(start_servers, COUNTED, plain)
    about: dict[str, Any] = {
        "table": "counted",
        "block": 0,
        "start": 0,
        "count": 9,
        "now": 20_000,
        "before": 0,
        "step": 0,
    }

    for start in (0, 1 << 62):
        (answer,) = await worker.ask("survey", **about | {"start": start, "below": 1 << 60})
        assert answer.tensors["ids"].size == answer.tensors["keys"].size == 0
        (answer,) = await worker.ask("survey", **about | {"low": 1 << 60, "shift": 48})
        assert answer.tensors["counts"].tolist() == [0] * 4096
    with pytest.raises(MalformedMessageError):
        await worker.ask("survey", **about | {"below": 1 << 59} | wrong)


async def test_a_large_push_is_looked_through_too(start_servers: Start) -> None:
    worker = await started(start_servers, TableSpec(name="flat", kind="dense", size=100_000))
    numbers = np.ones(100_000, np.float32)
    numbers[-1] = np.nan

    with pytest.raises(NonFiniteGradientError):
        await worker.push({"flat": numbers})


async def test_tensors_of_another_shape_or_dtype_are_refused(start_servers: Start) -> None:
    worker = await started(start_servers, ROWS, FLAT)
    (message,) = worker.push_messages({"rows": one_row()}, step=0)

    async def refused(name: str, tensor: np.ndarray) -> RowShapeError:
        wrong = Message(fields=message.fields, tensors={**message.tensors, name: tensor})
        with pytest.raises(RowShapeError) as caught:
            await worker.call(0, "push", wrong)
        return caught.value

    error = await refused("0.grads", np.ones((1, 5), np.float32))
    assert error.facts["table"] == "rows"
    await refused("0.grads", np.ones((1, 4), np.float64))
    await refused("0.ids", np.ones(1, np.int32))
    await refused("0.offsets", np.zeros(4, np.int64))
    with pytest.raises(MalformedMessageError, match=r"0\.(ids|offsets)") as caught:
        await worker.call(0, "push", Message(fields=message.fields))
    assert caught.value.rule == "is missing"


async def test_bounds_that_do_not_rise_to_the_number_of_ids_are_refused(
    start_servers: Start,
) -> None:
    worker = await started(start_servers, ROWS)
    (message,) = worker.push_messages({"rows": one_row()}, step=0)

    for bounds in ([1, *[1] * 8], [0] * 9, [0, 1, 0, 1, 1, 1, 1, 1, 1]):
        tensors = {**message.tensors, "0.offsets": np.array(bounds, np.int64)}
        with pytest.raises(MalformedMessageError):
            await worker.call(0, "push", Message(fields=message.fields, tensors=tensors))


async def test_a_part_with_a_wrong_field_is_refused(start_servers: Start) -> None:
    worker = await started(start_servers, ROWS)
    (message,) = worker.push_messages({"rows": one_row()}, step=0)
    part = message.fields["parts"][0]
    wrong_parts = [
        [{**part, "lr": "0.1"}],
        [{**part, "table": 3}],
        [part, part],
        "rows",
    ]
    tensors = {**message.tensors, **{f"1.{k[2:]}": v for k, v in message.tensors.items()}}

    for parts in wrong_parts:
        wrong = Message(fields={**message.fields, "parts": parts}, tensors=tensors)
        with pytest.raises(MalformedMessageError):
            await worker.call(0, "push", wrong)


@pytest.mark.parametrize("wrong", [{"sequence": 0}, {"sequence": True}, {"rank": "0"}, {}])
@pytest.mark.parametrize("operation", ["push", "void"])
async def test_a_change_without_a_proper_name_is_refused(
    start_servers: Start, operation: str, wrong: dict[str, Any]
) -> None:
    worker = await started(start_servers, ROWS)
    (message,) = worker.push_messages({"rows": one_row()}, step=0)
    fields = {name: each for name, each in message.fields.items() if name != "sequence"}
    nameless = Message(fields={**fields, **wrong}, tensors=message.tensors)

    with pytest.raises(MalformedMessageError, match=r"'sequence'|'rank'"):
        await worker.call(0, operation, nameless)


async def test_a_push_that_was_refused_is_sent_again_corrected_or_voided(
    start_servers: Start,
) -> None:
    """A gap that stayed would keep all from being taken that is far ahead of it."""
    worker = await started(start_servers, ROWS)
    pushes = [
        worker.push_messages({"rows": one_row()}, step=n)[0] for n in range(MAX_LATER + 3)
    ]
    wrong = {**pushes[0].tensors, "0.grads": np.full((1, 4), np.nan, np.float32)}
    with pytest.raises(NonFiniteGradientError):
        await worker.call(0, "push", Message(fields=pushes[0].fields, tensors=wrong))
    (status,) = await worker.ask("status")
    assert [member["steps"] for member in status.fields["members"]] == [0]

    corrected = await worker.call(0, "push", pushes[0])
    assert corrected.fields["duplicate"] is False
    with pytest.raises(SequenceTooEarlyError) as early:
        await worker.call(0, "push", pushes[-1])
    assert early.value.facts["awaited"] == 2

    (voided,) = await worker.ask("void", sequence=2)
    (again,) = await worker.ask("void", sequence=2)
    assert (voided.fields["duplicate"], again.fields["duplicate"]) == (False, True)
    for push, duplicate in ((pushes[1], True), (pushes[-1], False)):
        answer = await worker.call(0, "push", push)
        assert answer.fields["duplicate"] is duplicate
    np.testing.assert_array_equal(await worker.pull("rows", [5]), -2 * one_row()[1])


async def test_a_stranger_voids_nothing(start_servers: Start) -> None:
    cluster = await start_servers(1)
    worker, stranger = cluster.worker(), cluster.worker(7)
    await worker.declare(ROWS)

    with pytest.raises(UnknownWorkerError):
        await stranger.ask("void", sequence=1)


async def test_a_table_nobody_declared_is_named_in_the_error(start_servers: Start) -> None:
    worker = await started(start_servers, ROWS)
    worker.specs["other"] = FLAT

    with pytest.raises(UnknownTableError) as caught:
        await worker.pull("other")
    assert caught.value.table == "other"


async def test_nothing_works_before_a_declaration(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()

    with pytest.raises(TablesNotDeclaredError) as caught:
        await worker.ask("pull", parts=[], min_version=0)
    assert caught.value.operation == "pull"
    (status,) = await worker.ask("status")
    assert (status.fields["mode"], status.fields["tables"]) == (None, [])


async def test_declaring_again_is_harmless_and_declaring_otherwise_is_refused(
    start_servers: Start,
) -> None:
    worker = await started(start_servers, ROWS)
    await worker.push({"rows": one_row()})

    (again,) = await worker.declare(ROWS, FLAT)
    assert (again.fields["created"], again.fields["loaded"]) == (["flat"], [])
    with pytest.raises(TableMismatchError) as caught:
        await worker.declare(TableSpec(name="rows", kind="sparse", dim=8))
    assert caught.value.facts == {"table": "rows", "field": "dim", "have": 4, "got": 8}
    with pytest.raises(TableMismatchError):
        await worker.declare(TableSpec(name="new", kind="sparse", dim=8, num_shards=4))

    np.testing.assert_array_equal(await worker.pull("rows", [5]), -one_row()[1])


@pytest.mark.parametrize(
    ("field", "terms"),
    [
        ("mode", {"mode": "sync"}),
        ("worker_num", {"worker_num": 3}),
        ("max_staleness", {"max_staleness": 2}),
    ],
)
async def test_workers_that_disagree_on_the_job_are_told(
    start_servers: Start, field: str, terms: dict[str, object]
) -> None:
    worker = await started(start_servers, ROWS)

    with pytest.raises(ModeMismatchError) as caught:
        await worker.declare(ROWS, **terms)  # type: ignore[arg-type]  # passed through
    assert caught.value.field == field
    assert caught.value.got == terms[field]


async def test_an_unknown_mode_is_refused(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()

    with pytest.raises(MalformedMessageError):
        await worker.declare(ROWS, mode="lazy")


async def test_an_exchange_is_no_operation_of_async(start_servers: Start) -> None:
    worker = await started(start_servers, ROWS)

    with pytest.raises(OperationModeError) as caught:
        await worker.exchange({"rows": one_row()})
    assert (caught.value.operation, caught.value.mode) == ("exchange", "async")


async def test_first_values_of_a_dense_table_are_taken_once(start_servers: Start) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(FLAT, ROWS)

    async def assign(value: float, *, only_if_new: bool) -> list[bool]:
        given = []
        for server in range(2):
            where = worker.range_of(server, 21)
            fields = {
                "rank": 0,
                "incarnation": 1,
                "table": "flat",
                "only_if_new": only_if_new,
            }
            rows = np.full(where.stop - where.start, value, np.float32)
            message = Message(fields=fields, tensors={"rows": rows})
            given.append((await worker.call(server, "assign", message)).fields["assigned"])
        return given

    assert await assign(1.0, only_if_new=True) == [True, True]
    assert await assign(2.0, only_if_new=True) == [False, False]
    np.testing.assert_array_equal(await worker.pull("flat"), np.ones(21, np.float32))
    assert await assign(3.0, only_if_new=False) == [True, True]
    np.testing.assert_array_equal(await worker.pull("flat"), np.full(21, 3, np.float32))
    with pytest.raises(MalformedMessageError):
        await worker.ask("assign", table="rows", only_if_new=True)


async def test_a_worker_ahead_of_the_slowest_waits_for_its_turn(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada, bob = cluster.worker(0), cluster.worker(1)
    for worker in (ada, bob):
        await worker.declare(ROWS, worker_num=2, max_staleness=1)
    for step in range(2):
        await ada.ask("wait_turn", step=step)
        await ada.push({"rows": one_row()}, step=step)

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(ada.ask("wait_turn", step=2))
        await cluster.until(lambda facts: facts["parked"])
        await bob.push({"rows": one_row()}, step=0)
    (turn,) = waiting.result()

    assert turn.fields["slowest"] == 1
    assert cluster.routes[0].facts()["parked"] == 0


async def test_a_turn_that_never_comes_ends_in_an_error_that_says_why(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada = cluster.worker(0)
    await ada.declare(ROWS, worker_num=2, max_staleness=0)

    with pytest.raises(TurnTimeoutError) as caught:
        await ada.ask("wait_turn", timeout_s=2.0, step=3)

    error = caught.value
    assert (error.rank, error.step, error.slowest) == (0, 3, 0)
    assert error.waited_s < 2.0
    assert cluster.routes[0].facts()["parked"] == 0


async def test_a_worker_that_leaves_lets_the_others_go_on(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada, bob = cluster.worker(0), cluster.worker(1)
    await ada.declare(ROWS, worker_num=2, max_staleness=0)

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(ada.ask("wait_turn", step=1))
        await cluster.until(lambda facts: facts["parked"])
        await bob.ask("leave", step=0)
    await bob.ask("leave", step=0)

    assert waiting.result()[0].fields["slowest"] is None
    with pytest.raises(UnknownWorkerError):
        await bob.push({"rows": one_row()})


@pytest.mark.slow
async def test_a_push_goes_on_when_its_caller_no_longer_waits(start_servers: Start) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(TableSpec(name="flat", kind="dense", size=3_000_000))
    (message,) = worker.push_messages({"flat": np.ones(3_000_000, np.float32)}, step=0)

    async with asyncio.TaskGroup() as tasks:
        pushing = tasks.create_task(worker.call(0, "push", message))
        await cluster.until(lambda facts: facts["tables"][0]["pushes"])
        pushing.cancel()

    again = await worker.call(0, "push", message)
    assert again.fields["duplicate"] is True
    values = await worker.pull("flat")
    assert values.min() == values.max() == -1.0


@pytest.mark.slow
async def test_a_large_push_does_not_hold_small_requests(start_servers: Start) -> None:
    adam = OptimizerSpec(rule="adam")
    big = TableSpec(name="big", kind="dense", size=8_000_000, optimizer=adam)
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(big, ROWS)
    (message,) = worker.push_messages({"big": np.ones(8_000_000, np.float32)}, step=0)

    owners, gate = cluster.routes[0]._owners, threading.Event()

    def wait() -> None:
        gate.wait(timeout=LATE_S)

    held = owners.start(Job(owner, 1 << 20, wait) for owner in range(len(owners)))
    async with asyncio.TaskGroup() as tasks:
        pushing = tasks.create_task(worker.call(0, "push", message))
        for _ in range(3):
            await worker.ask("status")
        assert not pushing.done()
        gate.set()
    await held

    assert cluster.routes[0].facts()["tables"][0]["pushes"] == 1
