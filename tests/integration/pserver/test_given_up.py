"""What becomes of a change that a pserver refuses: it is corrected, or voided, on all."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet.session.checkpoint.cuts import judge
from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author, Read, ReadPlan
from paramfleet_shared.checkpoint.manifest import (
    FilePart,
    Manifest,
    SavedTable,
    write_manifest,
    write_part,
)
from paramfleet_shared.errors.served import NonFiniteGradientError, StepIncompleteError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.testing.patience import LATE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster, Worker

    from paramfleet_shared.errors import FleetError

    Start = Callable[..., Awaitable[Cluster]]

SIZE = 8
FLAT = TableSpec(name="flat", kind="dense", size=SIZE, optimizer=OptimizerSpec(rule="sum"))
ONES = np.ones(SIZE, np.float32)


@asynccontextmanager
async def pservers_of(
    worker: Worker, *, step_timeout_s: float = 20.0
) -> AsyncIterator[PServers]:
    pservers = PServers(
        worker.placement,
        author=Author(rank=0, incarnation=1),
        clock=SystemClock(),
        call_timeout_s=LATE_S,
        step_timeout_s=step_timeout_s,
    )
    try:
        yield pservers
    finally:
        await pservers.close()


def wrong_at(server: int, messages: Sequence[Message]) -> list[Message]:
    """Return a push that one pserver must refuse."""
    wrong = list(messages)
    tensors = {name: array * np.nan for name, array in messages[server].tensors.items()}
    wrong[server] = Message(fields=messages[server].fields, tensors=tensors)
    return wrong


def taken(cluster: Cluster) -> list[list[tuple[Any, ...]]]:
    """Return what each pserver has taken: the next sequence, later ones, voided ones."""
    found = []
    for routes in cluster.routes:
        assert routes._training is not None
        found.append([tuple(each[2:]) for each in routes._training.identities.taken()])
    return found


async def test_a_change_that_one_pserver_refused_is_voided_before_the_next(
    start_servers: Start,
) -> None:
    cluster = await start_servers(3)
    worker = cluster.worker()
    await worker.declare(FLAT)
    async with pservers_of(worker) as pservers:
        refused = wrong_at(1, worker.push_messages({"flat": ONES}, step=0))
        with pytest.raises(NonFiniteGradientError):
            await pservers.change("push", refused)
        assert taken(cluster) == [[(2, (), ())], [], [(2, (), ())]]

        await pservers.change("push", worker.push_messages({"flat": ONES}, step=1))

    assert taken(cluster) == [[(3, (), ())], [(3, (), (1,))], [(3, (), ())]]
    lacking = worker.range_of(1, SIZE)
    pulled = await worker.pull("flat")
    assert pulled[lacking].tolist() == [1.0] * (lacking.stop - lacking.start)
    assert pulled.sum() == 2 * SIZE - (lacking.stop - lacking.start)
    verdict = judge([a.fields for a in await worker.ask("hold", cut="a", for_s=9, targets=[])])
    assert (verdict.agree, verdict.hopeless) == (False, True)
    assert verdict.reason == "pserver 1 refused push 1 of worker 0, which pserver 0 has"


async def test_a_load_of_all_tables_makes_cuts_consistent_again(
    start_servers: Start, tmp_path: Path
) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(FLAT)
    part = FilePart(values=7 * ONES, states=np.empty((0, SIZE), np.float32))
    file = write_part(tmp_path, "flat.safetensors", FLAT, part)
    table = SavedTable(spec=FLAT, version=1)
    write_manifest(tmp_path, Manifest(tables=(table,), files=(file,)))
    async with pservers_of(worker) as pservers:
        refused = wrong_at(1, worker.push_messages({"flat": ONES}, step=0))
        with pytest.raises(NonFiniteGradientError):
            await pservers.change("push", refused)
        await pservers.change("push", worker.push_messages({"flat": ONES}, step=1))
        await worker.ask("load", dirname=str(tmp_path))
        await pservers.change("push", worker.push_messages({"flat": ONES}, step=2))

    verdict = judge([a.fields for a in await worker.ask("hold", cut="a", for_s=9, targets=[])])
    assert (verdict.agree, verdict.reason) == (True, "")
    assert (await worker.pull("flat")).tolist() == [8.0] * SIZE


async def test_a_change_that_was_refused_is_corrected_once_with_the_same_name(
    start_servers: Start,
) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(FLAT)
    push = worker.push_messages({"flat": ONES}, step=0)
    refusals: list[FleetError] = []

    def corrected(refusal: FleetError) -> list[Message]:
        refusals.append(refusal)
        return push

    async with pservers_of(worker) as pservers:
        answers = await pservers.change("push", wrong_at(0, push), corrected=corrected)

        assert [answer.fields["duplicate"] for answer in answers] == [False, True]
        assert len(refusals) == 1
        assert taken(cluster) == [[(2, (), ())]] * 2

        worker.push_messages({"flat": ONES}, step=1)
        again = wrong_at(0, worker.push_messages({"flat": ONES}, step=1))
        with pytest.raises(NonFiniteGradientError):
            await pservers.change("push", again, corrected=lambda _: again)

    assert (await worker.pull("flat")).tolist()[-1] == 2.0


async def test_a_change_whose_sender_was_cancelled_leaves_no_gap(start_servers: Start) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(FLAT)
    await worker.ask("hold", cut="a", for_s=30.0, targets=[])
    async with pservers_of(worker) as pservers:
        held = worker.push_messages({"flat": ONES}, step=0)
        pushing = asyncio.get_running_loop().create_task(pservers.change("push", held))
        for _ in range(5000):
            if all(each._holding._parking.awaited() for each in cluster.routes):
                break
            await asyncio.sleep(0.001)
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        await worker.ask("hold", cut="a", for_s=0, targets=[])

        await pservers.change("push", worker.push_messages({"flat": ONES}, step=1))

    assert [each[0][:2] for each in taken(cluster)] == [(3, ())] * 2


async def test_a_step_of_sync_that_was_given_up_may_be_taken_by_another_push(
    start_servers: Start,
) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(FLAT, mode="sync")
    plan = ReadPlan([Read(table="flat", size=SIZE)], cluster.placement)
    async with pservers_of(worker) as pservers:
        refused = worker.push_messages({"flat": np.full(SIZE, np.nan, np.float32)}, step=0)
        with pytest.raises(NonFiniteGradientError):
            await pservers.step(plan.behind(refused))
        pservers.give_up(refused[0].fields)

        pushes = worker.push_messages({"flat": ONES}, step=0)
        answers, _ = await pservers.step(plan.behind(pushes))

    assert plan.join(answers)[0].tolist() == [1.0] * SIZE
    assert taken(cluster) == [[(3, (), (1,))]] * 2


async def test_a_step_that_was_kept_is_not_undone_by_giving_it_up(start_servers: Start) -> None:
    cluster = await start_servers(2)
    ada, bob = (cluster.worker(rank) for rank in range(2))
    for worker in (ada, bob):
        await worker.declare(FLAT, mode="sync", worker_num=2)
    plan = ReadPlan([Read(table="flat", size=SIZE)], cluster.placement)
    async with pservers_of(ada, step_timeout_s=0.5) as pservers:
        pushes = ada.push_messages({"flat": ONES}, step=0)
        with pytest.raises(StepIncompleteError):
            await pservers.step(plan.behind(pushes))
        pservers.give_up(pushes[0].fields)
        await bob.push({"flat": ONES}, step=0)
        await pservers.change("push", ada.push_messages({"flat": ONES}, step=1))

    assert taken(cluster)[0][0] == (3, (), ())
    assert (await ada.pull("flat", min_version=1)).tolist() == [1.0] * SIZE
