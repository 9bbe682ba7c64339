"""Updates of a dense table whose numbers come in pieces, each applied when it comes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.errors.served import NonFiniteGradientError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

SIZE = 5000
PIECE = 256
"""The last piece is shorter, and the two servers' ranges end differently."""


def table(rule: OptimizerSpec, size: int = SIZE) -> TableSpec:
    return TableSpec(name="w", kind="dense", size=size, optimizer=rule)


def numbers(seed: int, size: int = SIZE) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def in_pieces(
    worker: Any, values: NDArray[np.float32], *, tensor: str, **fields: Any
) -> Iterator[list[Message]]:
    """Yield messages, one a server, each with one piece."""
    ranges = [worker.range_of(server, SIZE) for server in range(len(worker.channels))]
    longest = max(where.stop - where.start for where in ranges)
    first = worker.sequence + 1
    for start in range(0, longest, PIECE):
        worker.sequence += 1
        messages = []
        for where in ranges:
            mine = values[where]
            piece = mine[start : start + PIECE]
            at = min(start, len(mine))
            part = {
                "table": "w",
                "update": first,
                "start": at,
                "stop": at + len(piece),
                "square": float(np.dot(mine.astype(np.float64), mine)),
                "lr": 0.5,
                "ack": 0,
                "max_rows": 1,
            }
            part |= fields.get("part", {})
            head = {**worker.change(), "parts": [part]}
            rest = {"step": 0, "weight": 1.0, "continues": True}
            rest |= {name: value for name, value in fields.items() if name != "part"}
            tensors = {f"0.{tensor}": piece}
            messages.append(Message(fields={**head, **rest}, tensors=tensors))
        yield messages


async def end(worker: Any, op: str = "push", *, step: int = 0) -> None:
    """End a step whose pieces have been sent."""
    worker.sequence += 1
    await worker.ask(op, step=step, weight=1.0, parts=[], sequence=worker.sequence)


RULES = [
    OptimizerSpec(rule="sgd"),
    OptimizerSpec(rule="momentum", momentum=0.5, dampening=0.5),
    OptimizerSpec(rule="adam"),
    OptimizerSpec(rule="adagrad", lr_decay=0.5),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
async def test_pieces_in_any_order_step_as_the_whole_does(
    start_servers: Any, rule: OptimizerSpec
) -> None:
    whole, divided = [(await start_servers(2)).worker() for _ in range(2)]
    num_pieces = 10
    for worker in (whole, divided):
        await worker.declare(table(rule))

    for step in range(3):
        await whole.push({"w": numbers(step)}, step=step, lr=0.5)
        pieces = list(in_pieces(divided, numbers(step), tensor="grads", step=step))
        assert len(pieces) == num_pieces
        await asyncio.gather(*(divided.send("push", piece) for piece in reversed(pieces)))
        await end(divided, step=step)

    np.testing.assert_array_equal(await divided.pull("w"), await whole.pull("w"))
    for routes in divided.cluster.routes:
        assert routes.facts()["tables"][0]["version"] == 3
        assert routes.facts()["members"] == [{"rank": 0, "steps": 3}]


async def test_a_piece_that_is_sent_again_counts_once(start_servers: Any) -> None:
    worker = (await start_servers(2)).worker()
    await worker.declare(table(OptimizerSpec(rule="sgd")))

    for piece in in_pieces(worker, numbers(1), tensor="grads"):
        await worker.send("push", piece)
        (answer, _) = await worker.send("push", piece)
        assert answer.fields["duplicate"] is True

    np.testing.assert_array_equal(await worker.pull("w"), -numbers(1) * np.float32(0.5))


async def test_an_exchange_of_a_piece_is_answered_with_its_values(start_servers: Any) -> None:
    worker = (await start_servers(2)).worker()
    await worker.declare(table(OptimizerSpec(rule="sum")), mode="geo")

    received = [
        [answer.tensors["0.rows"] for answer in await worker.send("exchange", piece)]
        for piece in in_pieces(worker, numbers(1), tensor="deltas")
    ]

    by_server = [np.concatenate(rows) for rows in zip(*received, strict=True)]
    np.testing.assert_array_equal(np.concatenate(by_server), numbers(1))


async def test_a_guarded_update_in_pieces_is_judged_as_a_whole(start_servers: Any) -> None:
    """A difference that is much longer than those before is shortened, by its whole length."""
    pulled = []
    for divides in (False, True):
        cluster = await start_servers(1)
        workers = [cluster.worker(rank) for rank in range(2)]
        for worker in workers:
            await worker.declare(table(OptimizerSpec(rule="sum")), mode="geo", worker_num=2)
        for step in range(6):
            values = numbers(step) * np.float32(100.0 if step == 5 else 1.0)
            if divides:
                about = {"damping": 0.5, "guarded_steps": 1}
                for piece in in_pieces(workers[0], values, tensor="deltas", part=about):
                    await workers[0].send("exchange", piece)
            else:
                await workers[0].exchange({"w": values}, damping=0.5, guarded_steps=1)
        pulled.append(await workers[0].pull("w"))

    whole, divided = pulled
    assert np.abs(divided).max() < 50
    np.testing.assert_allclose(divided, whole, rtol=1e-5, atol=1e-6)


async def test_a_step_that_comes_in_pieces_isnt_finished_before_its_end(
    start_servers: Any,
) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(table(OptimizerSpec(rule="sgd")))

    def steps() -> int:
        (member,) = cluster.routes[0].facts()["members"]
        count: int = member["steps"]
        return count

    for piece in in_pieces(worker, numbers(1), tensor="grads"):
        await worker.send("push", piece)
    (held,) = await worker.ask("hold", cut="c", for_s=5.0, targets=[])
    assert steps() == 0
    assert held.fields["unfinished"] == [[0, 1]]

    await end(worker)

    (held,) = await worker.ask("hold", cut="c", for_s=0.0, targets=[])
    assert steps() == 1
    assert held.fields["unfinished"] == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"start": SIZE + 1, "stop": SIZE + 1 + PIECE}, MalformedMessageError),
        ({"start": 10, "stop": 9}, MalformedMessageError),
        ({"start": -1}, MalformedMessageError),
        ({"stop": None}, MalformedMessageError),
        ({"stop": 1 << 63}, MalformedMessageError),
        ({"stop": PIECE + 1}, RowShapeError),
        ({"square": -1.0}, MalformedMessageError),
        ({"square": float("nan")}, MalformedMessageError),
        ({"square": None}, MalformedMessageError),
        ({"update": 0}, MalformedMessageError),
        ({"update": "1"}, MalformedMessageError),
    ],
)
async def test_a_piece_with_a_wrong_field_changes_nothing(
    start_servers: Any, change: dict[str, Any], error: type[Exception]
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(table(OptimizerSpec(rule="sgd")))
    piece = next(in_pieces(worker, numbers(1), tensor="grads", part=change))

    with pytest.raises(error):
        await worker.send("push", piece)

    assert not (await worker.pull("w")).any()


async def test_a_piece_that_isnt_finite_changes_nothing(start_servers: Any) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(table(OptimizerSpec(rule="sgd")))
    values = np.full(SIZE, np.nan, np.float32)

    piece = next(in_pieces(worker, values, tensor="grads", part={"square": 1.0}))

    with pytest.raises(NonFiniteGradientError):
        await worker.send("push", piece)

    assert not (await worker.pull("w")).any()


async def test_sync_takes_no_pieces_that_are_applied_at_once(start_servers: Any) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(table(OptimizerSpec(rule="sgd")), mode="sync")

    with pytest.raises(MalformedMessageError, match="don't wait"):
        await worker.send("push", next(in_pieces(worker, numbers(1), tensor="grads")))
