"""``save`` with a choice, and ``discount``: what an export holds of rows with an accessor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.checkpoint.manifest import FilePart, SavedFile, read_part
from paramfleet_shared.errors.served import FencedError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.choosing import delta_scores
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.testing.faults import FaultPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

ADS = TableSpec(name="ads", kind="sparse", dim=4, optimizer=OptimizerSpec(rule="ctr"))
WORDS = TableSpec(name="words", kind="sparse", dim=2)
BASE = {"kind": "base", "days": {"ads": 0}}
DELTA = {"kind": "delta", "days": {"ads": 0}}


def shown(ids: Sequence[int], show: float, click: float) -> tuple[Any, Any]:
    grads = np.zeros((len(ids), 4), np.float32)
    grads[:, :2] = show, click
    return np.array(ids, np.int64), grads


async def pushed(worker: Worker, step: int, *parts: tuple[Any, Any]) -> None:
    ids, grads = (np.concatenate(each) for each in zip(*parts, strict=True))
    words = ids, np.ones((len(ids), 2), np.float32)
    await worker.push({"ads": (ids, grads), "words": words}, step=step)


async def export(
    worker: Worker, folder: Path, choice: Any, chain: Any = None
) -> dict[str, FilePart]:
    """Return what servers write, by table."""
    more = {} if chain is None else {"chain": chain}
    replies = await worker.ask("save", dirname=str(folder), choice=choice, **more)
    found: dict[str, list[FilePart]] = {"ads": [], "words": []}
    for reply in replies:
        for wire in reply.fields["files"]:
            file = SavedFile.from_wire(wire)
            found[file.table].append(read_part(folder, file, worker.specs[file.table]))
    return {
        name: FilePart(
            ids=np.concatenate(
                [np.empty(0, np.int64), *(p.ids for p in parts if p.ids is not None)]
            ),
            values=np.concatenate(
                [np.empty((0, worker.specs[name].dim), np.float32), *(p.values for p in parts)]
            ),
            states=np.concatenate([p.states for p in parts] or [np.empty((0, 0), np.float32)]),
        )
        for name, parts in found.items()
    }


def scores(part: FilePart) -> dict[int, float]:
    assert part.ids is not None
    if not len(part.ids):
        return {}
    numbers = delta_scores(ADS, part.states).round(4).tolist()
    return dict(zip(part.ids.tolist(), numbers, strict=True))


def discounts(worker: Worker, ids: Sequence[int], amounts: Sequence[float]) -> list[Message]:
    worker.sequence += 1
    fields = {**worker.change(), "table": "ads", "step": 1}
    messages = []
    for server in range(len(worker.channels)):
        positions, tensors = worker.part_of(server, 0, "ads", np.array(ids, np.int64))
        tensors["0.amounts"] = np.array(amounts, np.float32)[positions]
        messages.append(Message(fields=fields, tensors=tensors))
    return messages


async def trained(start: Start, num_servers: int = 2, **more: Any) -> Worker:
    worker = (await start(num_servers, **more)).worker()
    await worker.declare(ADS, WORDS)
    await pushed(worker, 0, shown(range(10), 3, 2), shown(range(10, 20), 1, 0))
    return worker


async def test_servers_write_the_rows_that_are_chosen(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(start_servers)
    chains = [{"save": f"{n:032}", "since": f"{n - 1:032}" if n else ""} for n in range(3)]

    base = await export(worker, tmp_path / "base", BASE, chains[0])
    assert scores(base["ads"]) == dict.fromkeys(range(10), pytest.approx(2.1))
    assert base["words"].num_rows == 20
    await worker.send("discount", discounts(worker, range(10), [2.1] * 10))
    await pushed(worker, 1, shown([2, 3], 1, 1), shown([4], 1, 0))
    await worker.remove("ads", [9], step=2)
    delta = await export(worker, tmp_path / "delta", DELTA, chains[1])
    assert set(scores(delta["ads"])) == {2, 3}, "4 has grown by .1 alone"
    assert sorted(delta["words"].ids) == [2, 3, 4]  # type: ignore[arg-type]

    checkpoint = {"save": "f" * 32, "since": ""}
    await worker.ask("save", dirname=str(tmp_path / "checkpoint"), chain=checkpoint)
    last = await export(worker, tmp_path / "last", DELTA, chains[2])
    assert last["words"].num_rows == 0, "checkpoints are another chain"


async def test_servers_tell_how_many_rows_they_left_out(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(start_servers)

    replies = await worker.ask("save", dirname=str(tmp_path / "base"), choice=BASE)
    whole = await worker.ask("save", dirname=str(tmp_path / "checkpoint"))

    assert sum(reply.fields["left_out"]["ads"] for reply in replies) == 10
    assert all(set(reply.fields["left_out"]) == {"ads"} for reply in replies)
    assert all(reply.fields["left_out"] == {} for reply in whole)


async def test_a_discount_is_executed_once(start_servers: Start, tmp_path: Path) -> None:
    plan = FaultPlan().drop_reply(of="discount", nth=1).duplicate_request(of="discount", nth=3)
    worker = await trained(start_servers, faults=plan)
    messages = discounts(worker, [0, 1, 10, 99], [0.5, 9.0, 0.1, 1.0])

    for _ in range(3):
        await worker.send("discount", messages)

    await pushed(worker, 1, shown([10], 100, 0))
    found = scores((await export(worker, tmp_path / "base", BASE))["ads"])
    assert {id_: found[id_] for id_ in (0, 1, 2, 10)} == {
        0: pytest.approx(1.6),
        1: pytest.approx(2.1),  # it has less: it would have begun anew
        2: pytest.approx(2.1),
        10: pytest.approx(10.0),
    }


async def test_what_is_no_discount_changes_nothing(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(start_servers, 1)
    (good,) = discounts(worker, [0, 1], [1.0, 1.0])
    for fields, amounts in (
        ({"table": "words"}, [1.0, 1.0]),
        ({}, [np.nan, 1.0]),
        ({}, None),
    ):
        tensors = dict(good.tensors)
        if amounts is None:
            del tensors["0.amounts"]
        else:
            tensors["0.amounts"] = np.array(amounts, np.float32)
        with pytest.raises(MalformedMessageError):
            await worker.call(
                0, "discount", Message(fields={**good.fields, **fields}, tensors=tensors)
            )
    for choice in (7, {"kind": "all", "days": {}}, {"kind": "base", "days": {"ads": -1}}):
        with pytest.raises(MalformedMessageError):
            await worker.ask("save", dirname=str(tmp_path / "x"), choice=choice)
    newer = worker.cluster.worker(incarnation=2)
    newer.specs = worker.specs
    await newer.send("discount", discounts(newer, [5], [1.0]))
    with pytest.raises(FencedError):
        await worker.call(0, "discount", good)

    found = scores((await export(newer, tmp_path / "base", BASE))["ads"])
    assert found[0] == pytest.approx(2.1)
    assert found[5] == pytest.approx(1.1)
