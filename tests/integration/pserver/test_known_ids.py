"""Pulls whose ids travel as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.errors.served import KnownIdsGoneError, UnknownWorkerError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import pack_ids
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

ROWS = TableSpec(
    name="rows",
    kind="sparse",
    dim=5,
    optimizer=OptimizerSpec(rule="sgd"),
    initializer=InitializerSpec(kind="normal"),
)
IDS = np.random.default_rng(1).permutation(3000).astype(np.int64) * 11 - 9000


def naming(
    worker: Worker, known: np.ndarray, others: np.ndarray, numbers: dict[int, int], **about: Any
) -> tuple[np.ndarray, Message]:
    """Return ids in the order of a pull, and the pull: known ones of a shard go first."""
    _, of_known = worker.part_of(0, 0, "rows", known)
    _, of_others = worker.part_of(0, 0, "rows", others)
    ends, other_ends = of_known["0.offsets"], of_others["0.offsets"]
    pieces, named = [], []
    for shard in range(len(ends) - 1):
        mine = of_known["0.ids"][ends[shard] : ends[shard + 1]]
        mine = mine[np.argsort([numbers[each] for each in mine.tolist()], kind="stable")]
        named += [numbers[each] for each in mine.tolist()]
        pieces += [mine, of_others["0.ids"][other_ends[shard] : other_ends[shard + 1]]]
    tensors = {
        "0.numbers": np.array(named, np.int64),
        "0.known": ends,
        "0.ids": of_others["0.ids"],
        "0.offsets": ends + other_ends,
    }
    packed = pack_ids(tensors["0.numbers"], ends)
    if packed is not None:
        tensors["0.numbers"] = packed
    part = {"table": "rows", "create": True, "ids": "known", "book": 7, **about}
    fields = {"rank": 0, "min_version": 0, "parts": [part]}
    return np.concatenate(pieces), Message(fields=fields, tensors=tensors)


async def test_rows_are_found_by_numbers_as_by_ids(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    rows = dict(zip(IDS.tolist(), await worker.pull("rows", IDS.tolist()), strict=True))
    nothing = np.empty(0, np.int64)

    order, first = naming(worker, nothing, IDS[:2000], {}, base=0)
    numbers = {each: number for number, each in enumerate(first.tensors["0.ids"].tolist())}
    answer = await worker.call(0, "pull", first)
    assert np.array_equal(answer.tensors["0.rows"], [rows[each] for each in order.tolist()])

    order, later = naming(worker, IDS[500:1500], IDS[2000:2500], numbers)
    for about in ({}, {"base": 2000}, {"base": 2000}):
        later.fields["parts"][0].update(about)
        assert later.tensors["0.numbers"].dtype == np.uint8
        answer = await worker.call(0, "pull", later)
        assert np.array_equal(answer.tensors["0.rows"], [rows[each] for each in order.tolist()])

    await worker.ask("leave", step=0)
    with pytest.raises(KnownIdsGoneError) as gone:
        await worker.call(0, "pull", later)
    assert gone.value.facts == {"table": "rows", "rank": 0, "book": 7}
    await worker.call(0, "pull", first)  # it comes late: the worker pushes no more
    with pytest.raises(KnownIdsGoneError):
        await worker.call(0, "pull", later)


async def test_numbers_that_dont_fit_are_refused(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    nothing = np.empty(0, np.int64)
    _, first = naming(worker, nothing, IDS[:100], {}, base=0)
    numbers = {each: number for number, each in enumerate(first.tensors["0.ids"].tolist())}

    stranger = Message(fields={**first.fields, "rank": 1}, tensors=first.tensors)
    with pytest.raises(UnknownWorkerError):
        await worker.call(0, "pull", stranger)
    await worker.call(0, "pull", first)
    _, good = naming(worker, IDS[:50], IDS[200:210], numbers)

    async def refused(error: type[Exception], without: str = "", **changes: Any) -> None:
        tensors = {**good.tensors, **{f"0.{name}": value for name, value in changes.items()}}
        tensors.pop(without, None)
        with pytest.raises(error):
            await worker.call(0, "pull", Message(fields=good.fields, tensors=tensors))

    await refused(MalformedMessageError, known=good.tensors["0.offsets"] + 1)
    await refused(MalformedMessageError, offsets=good.tensors["0.offsets"][::-1].copy())
    await refused(MalformedMessageError, ids=good.tensors["0.ids"][:-1])
    await refused(MalformedMessageError, numbers=np.zeros(3, np.uint8))
    await refused(RowShapeError, known=good.tensors["0.known"][:-1])
    await refused(RowShapeError, ids=good.tensors["0.ids"].astype(np.float32))
    await refused(MalformedMessageError, without="0.known")
