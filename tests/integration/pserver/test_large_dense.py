"""Dense numbers that come in pieces ahead of their request, and tables that are too large."""

import asyncio
import threading
import weakref
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet.config.dense_limits import DenseLimits
from paramfleet.transport.staging import Ahead
from paramfleet_pserver.core.limits import TableLimits
from paramfleet_shared.errors.served import FencedError, UnknownWorkerError
from paramfleet_shared.errors.tables import StagedGoneError, TableLimitError, TableMemoryError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.testing.loop_watch import LoopWatch
from paramfleet_shared.values.amounts import Memory

SIZE = 5000
SPEC = TableSpec(name="w", kind="dense", size=SIZE, optimizer=OptimizerSpec(rule="sgd"))
LIMITS = DenseLimits(request_bytes=4096)


def numbers(seed: int, size: int = SIZE) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


async def send(worker: Any, ahead: Ahead, op: str, *, backwards: bool = False) -> list[Message]:
    """Send what goes ahead, then the messages that name it."""
    for _, pieces in sorted(ahead.pieces(), key=_start, reverse=backwards):
        await worker.send("stage", pieces)
    answers: list[Message] = await worker.send(op, ahead.messages())
    return answers


def _start(piece: tuple[str, list[Message]]) -> int:
    start: int = piece[1][0].fields["start"]
    return start


def divided(messages: Sequence[Message], op: str = "push", *, number: int = 1) -> Ahead:
    ahead = Ahead(op, messages, LIMITS, count(number))
    assert ahead
    return ahead


async def test_a_push_in_pieces_is_one_push_whatever_their_order(start_servers: Any) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(SPEC)
    first, second = numbers(1), numbers(2)

    ahead = divided(worker.push_messages({"w": first}, step=0))
    await send(worker, ahead, "push", backwards=True)
    await worker.push({"w": second}, step=1)

    np.testing.assert_array_equal(await worker.pull("w"), -first - second)
    assert [routes.facts()["tables"][0]["version"] for routes in cluster.routes] == [2, 2]


async def test_pieces_sent_again_for_a_push_that_was_applied_change_nothing(
    start_servers: Any,
) -> None:
    worker = (await start_servers(2)).worker()
    await worker.declare(SPEC)
    ahead = divided(worker.push_messages({"w": numbers(1)}, step=0))

    await send(worker, ahead, "push")
    with pytest.raises(StagedGoneError):
        await worker.send("push", ahead.messages())
    (answer, _) = await send(worker, ahead, "push")

    assert answer.fields["duplicate"] is True
    np.testing.assert_array_equal(await worker.pull("w"), -numbers(1))


async def test_a_push_that_lacks_a_piece_has_no_effect(start_servers: Any) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(SPEC)
    ahead = divided(worker.push_messages({"w": numbers(1)}, step=0))

    for _, pieces in list(ahead.pieces())[1:]:
        await worker.send("stage", pieces)
    with pytest.raises(StagedGoneError):
        await worker.send("push", ahead.messages())

    assert not (await worker.pull("w")).any()
    await send(worker, ahead, "push")
    np.testing.assert_array_equal(await worker.pull("w"), -numbers(1))


async def test_a_piece_that_comes_twice_counts_once(start_servers: Any) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(SPEC)
    ahead = divided(worker.push_messages({"w": numbers(1)}, step=0))

    for _, pieces in ahead.pieces():
        await asyncio.gather(*(worker.send("stage", pieces) for _ in range(3)))
    await worker.send("push", ahead.messages())

    np.testing.assert_array_equal(await worker.pull("w"), -numbers(1))


async def test_sync_keeps_pushes_in_pieces_until_the_step_is_whole(start_servers: Any) -> None:
    cluster = await start_servers(2)
    workers = [cluster.worker(rank) for rank in range(2)]
    for worker in workers:
        await worker.declare(SPEC, mode="sync", worker_num=2)

    for worker in workers:
        messages = worker.push_messages({"w": numbers(worker.rank)}, step=0)
        await send(worker, divided(messages), "push")

    half = np.float32(0.5)
    expected = numbers(0) * half + numbers(1) * half
    pulled = await workers[0].pull("w", min_version=1)
    np.testing.assert_array_equal(pulled, -expected)


async def test_a_quiet_exchange_is_answered_without_values(start_servers: Any) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(
        TableSpec(name="w", kind="dense", size=SIZE, optimizer=OptimizerSpec(rule="sum")),
        mode="geo",
    )
    messages = worker.messages(
        {"w": numbers(1)},
        tensor="deltas",
        extra=lambda *_: {"ack": 0, "max_rows": 1},
        step=0,
    )

    (answer,) = await send(worker, divided(messages, "exchange"), "exchange")

    assert answer.tensors["0.rows"].shape == (0,)
    np.testing.assert_array_equal(await worker.pull("w"), numbers(1))


async def test_a_pull_of_some_values_gets_those(start_servers: Any) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(SPEC)
    await worker.push({"w": numbers(1)}, step=0)

    async def pull(**part: Any) -> NDArray[np.float32]:
        fields = {"rank": 0, "min_version": 0, "parts": [{"table": "w", **part}]}
        answer = await worker.call(0, "pull", Message(fields=fields))
        rows: NDArray[np.float32] = answer.tensors["0.rows"]
        return rows

    np.testing.assert_array_equal(await pull(start=256, stop=700), -numbers(1)[256:700])
    assert len(await pull(start=SIZE, stop=SIZE)) == 0
    for start, stop in (
        (10, 9),
        (0, SIZE + 1),
        (1 << 63, 1 << 63),
        (0, True),
        (-1, 5),
        (0.0, 5),
    ):
        with pytest.raises(MalformedMessageError):
            await pull(start=start, stop=stop)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"start": SIZE}, MalformedMessageError),
        ({"start": 1 << 63}, MalformedMessageError),
        ({"start": -1}, MalformedMessageError),
        ({"number": True}, MalformedMessageError),
        ({"number": float("nan")}, MalformedMessageError),
        ({"table": "e"}, MalformedMessageError),
        ({"rank": 5}, UnknownWorkerError),
        ({"incarnation": 0}, FencedError),
    ],
)
async def test_a_piece_with_a_wrong_field_is_refused(
    start_servers: Any, change: dict[str, Any], error: type[Exception]
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(SPEC, TableSpec(name="e", kind="sparse"))
    fields = {"rank": 0, "incarnation": 1, "table": "w", "number": 1, "start": 0}
    piece = {"piece": np.zeros(9, np.float32)}

    with pytest.raises(error):
        await worker.call(0, "stage", Message(fields={**fields, **change}, tensors=piece))
    for wrong in (np.zeros((3, 3), np.float32), np.zeros(3, np.float64)):
        with pytest.raises(RowShapeError):
            await worker.call(0, "stage", Message(fields=fields, tensors={"piece": wrong}))


async def test_what_a_worker_sent_ahead_goes_with_it(start_servers: Any) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(SPEC)
    ahead = divided(worker.push_messages({"w": numbers(1)}, step=0))
    for _, pieces in ahead.pieces():
        await worker.send("stage", pieces)

    await worker.ask("leave", step=0)

    with pytest.raises(StagedGoneError):
        await worker.send("push", ahead.messages())


async def test_first_values_in_pieces_are_let_go_beside_the_event_loop(
    start_servers: Any,
) -> None:
    """To give gigabytes back to the system takes a tenth of a second."""
    cluster = await start_servers(1)
    worker = cluster.worker()
    size = 1 << 21
    await worker.declare(TableSpec(name="w", kind="dense", size=size))
    fields = {"rank": 0, "incarnation": 1, "table": "w", "only_if_new": True}
    values = numbers(1, size)
    ahead = divided([Message(fields=fields, tensors={"rows": values})], "assign")

    for _, pieces in ahead.pieces():
        await worker.send("stage", pieces)
    (staged,) = cluster.routes[0]._staging._staged.values()
    threads: list[int] = []
    weakref.finalize(staged.values, lambda: threads.append(threading.get_ident()))
    del staged
    (answer,) = await worker.send("assign", ahead.messages())

    assert answer.fields["assigned"]
    np.testing.assert_array_equal(await worker.pull("w"), values)
    assert len(threads) == 1, "it is let go"
    assert threads[0] != threading.get_ident()


async def test_a_table_beyond_the_memory_is_refused_and_none_of_its_declaration_is_made(
    start_servers: Any,
) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    huge = TableSpec(name="huge", kind="dense", size=1 << 50)
    wide = TableSpec(name="wide", kind="sparse", dim=1 << 31)

    with pytest.raises(TableMemoryError, match="1,125,899,906,842,624 values x 4 bytes"):
        await worker.declare(SPEC, huge)
    with pytest.raises(TableLimitError, match="dim = 2,147,483,648"):
        await worker.declare(SPEC, wide)

    assert cluster.routes[0].facts()["tables"] == []
    await worker.declare(SPEC)


async def pull_ever_more(worker: Any) -> None:
    for start in range(4000, 100_000, 1000):
        await worker.pull("e", np.arange(start, start + 1000), create=True)


async def test_rows_beyond_the_memory_are_refused_by_name(start_servers: Any) -> None:
    """What there is can be read and stepped; new rows come again when there is memory."""
    free = 1 << 40
    cluster = await start_servers(
        1, limits=TableLimits(), memory=lambda: Memory(total=1 << 40, free=free)
    )
    worker = cluster.worker()
    await worker.declare(TableSpec(name="e", kind="sparse", dim=1024))
    ids = np.arange(8000)
    await worker.pull("e", ids[:4000], create=True)

    free = (1 << 40) // 10 + 5000  # of which a tenth stays free
    with pytest.raises(TableMemoryError, match=r"table 'e': [\d,]+ more rows x 4,132 bytes"):
        await pull_ever_more(worker)
    await worker.push({"e": (ids[:4000], np.ones((4000, 1024), np.float32))}, step=0)
    free = 1 << 40
    await worker.pull("e", ids, create=True)


@pytest.mark.slow
@pytest.mark.slow_machine
async def test_no_work_on_a_long_range_holds_the_loop_up(
    start_servers: Any, tmp_path: Path
) -> None:
    """The loop is the pserver's and the worker's at once."""
    size = 30_000_000
    cluster = await start_servers(1)
    worker = cluster.worker()
    rule = OptimizerSpec(rule="adam")
    limits = DenseLimits()
    watch = LoopWatch()
    values = np.ones(size, np.float32)

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch.run())
        await worker.declare(TableSpec(name="w", kind="dense", size=size, optimizer=rule))
        for step in range(2):
            messages = worker.push_messages({"w": values}, step=step)
            ahead = Ahead("push", messages, limits, count(step))
            assert ahead
            await send(worker, ahead, "push")
        await worker.ask("save", timeout_s=60.0, dirname=str(tmp_path))
        watching.cancel()

    assert watch.longest_s <= 0.1
