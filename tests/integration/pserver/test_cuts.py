"""Pushes that are held while all pservers save, so that a checkpoint is of one moment."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet.session.checkpoint.cuts import begin_everywhere, end_everywhere, judge
from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author
from paramfleet_shared.checkpoint.cuts import Cut, PushesHeldError, SaveGoneError
from paramfleet_shared.checkpoint.manifest import (
    CheckpointWriteError,
    SavedFile,
    SavedTable,
    read_part,
)
from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.errors.served import FencedError, TablesNotDeclaredError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.testing.clock import FakeClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.values.ids import Rank

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

SUM = OptimizerSpec(rule="sum")
ROWS = TableSpec(name="rows", kind="sparse", dim=1, optimizer=SUM)
FLAT = TableSpec(name="flat", kind="dense", size=8, optimizer=SUM)
IDS = np.arange(64)


def ones() -> dict[str, Any]:
    return {"rows": (IDS, np.ones((64, 1), np.float32)), "flat": np.ones(8, np.float32)}


async def save_everywhere(
    pservers: PServers, author: Author, folder: str, **more: Any
) -> tuple[list[Message], Cut]:
    begun = await begin_everywhere(pservers, author, folder, **more)
    return await end_everywhere(pservers, begun), begun.cut


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def started(start_servers: Start, mode: str = "async", **options: Any) -> list[Worker]:
    cluster = await start_servers(2, **options)
    workers = [cluster.worker(rank) for rank in range(2)]
    for worker in workers:
        await worker.declare(ROWS, FLAT, mode=mode, worker_num=2)
    return workers


async def hold(worker: Worker, *, for_s: float = 30.0, cut: str = "a", **more: Any) -> Any:
    answers = await worker.ask("hold", cut=cut, for_s=for_s, **{"targets": [], **more})
    return judge([answer.fields for answer in answers])


async def until_agreed(worker: Worker, verdict: Any) -> None:
    for _ in range(1000):
        if (await hold(worker, targets=verdict.targets)).agree:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the pservers never agreed")


@asynccontextmanager
async def pservers_of(worker: Worker) -> AsyncIterator[tuple[PServers, Author]]:
    """The client's own connections, as its saving has them."""
    async with AsyncExitStack() as stack:
        made = PServers(
            worker.placement,
            clock=SystemClock(),
            call_timeout_s=LATE_S,
            step_timeout_s=20.0,
            author=Author(rank=worker.rank, incarnation=worker.incarnation),
        )
        stack.push_async_callback(made.close)
        yield made, Author(rank=worker.rank, incarnation=worker.incarnation)


def sums_of(folder: Path, answers: Any) -> set[float]:
    """Return the numbers of all files."""
    found: set[float] = set()
    for answer in answers:
        specs = [SavedTable.from_wire(wire).spec for wire in answer.fields["tables"]]
        by_name = {spec.name: spec for spec in specs}
        for wire in answer.fields["files"]:
            file = SavedFile.from_wire(wire)
            part = read_part(folder, file, by_name[file.table])
            found |= set(part.values.flatten().tolist())
    return found


async def test_a_push_that_comes_while_pushes_are_held_waits_for_the_save(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, other = await started(start_servers)
    await other.push(ones())
    assert (await hold(saver)).agree

    pushing = begin(other.push(ones(), step=1))
    await asyncio.sleep(0.1)
    assert not pushing.done()
    answers = await saver.ask("save", dirname=str(tmp_path / "c"), cut="a")

    assert [answer.fields["held"] for answer in answers] == [True, True]
    assert all(answer.fields["paused_s"] >= 0.1 for answer in answers)
    await pushing
    assert sums_of(tmp_path / "c", answers) == {1.0}
    assert await saver.pull("flat") == pytest.approx(np.full(8, 2.0))


async def test_a_push_that_one_pserver_has_is_let_through_at_the_other(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, other = await started(start_servers)
    here, there = other.push_messages(ones(), step=0)
    await other.call(0, "push", here)

    verdict = await hold(saver)
    assert not verdict.agree
    assert "pserver 1 lacks push 1 of worker 1" in verdict.reason
    late = begin(other.call(1, "push", there))
    after = begin(other.push(ones(), step=1))
    await asyncio.sleep(0.05)
    assert not late.done()
    await until_agreed(saver, verdict)
    await late
    answers = await saver.ask("save", dirname=str(tmp_path / "c"), cut="a")

    await after
    assert sums_of(tmp_path / "c", answers) == {1.0}


async def test_pushes_out_of_order_are_compared_one_by_one(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, other = await started(start_servers)
    first, second = (other.push_messages(ones(), step=step) for step in (0, 1))
    await other.call(0, "push", first[0])
    await other.call(1, "push", second[1])

    verdict = await hold(saver)
    assert not verdict.agree
    sent = [
        begin(other.call(server, "push", message))
        for server, message in ((0, second[0]), (1, first[1]))
    ]
    await until_agreed(saver, verdict)
    answers = await saver.ask("save", dirname=str(tmp_path / "c"), cut="a")

    assert sums_of(tmp_path / "c", answers) == {2.0}
    await asyncio.gather(*sent)


async def test_an_exchange_of_several_messages_is_in_a_cut_whole_or_not_at_all(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, other = await started(start_servers, mode="geo")
    exchange = {"ack": 0, "max_rows": 1}
    halves = [
        other.messages(part, tensor="deltas", extra=lambda *_: exchange, step=0, **more)
        for part, more in (
            ({"rows": ones()["rows"]}, {"continues": True}),
            ({"flat": ones()["flat"]}, {}),
        )
    ]
    await other.send("exchange", halves[0])

    verdict = await hold(saver)
    assert verdict.reason == "worker 1 is in the middle of an exchange"
    await other.send("exchange", halves[1])
    assert (await hold(saver, targets=verdict.targets)).agree
    another = begin(other.exchange(ones(), step=1))
    await asyncio.sleep(0.05)
    assert not another.done()
    answers = await saver.ask("save", dirname=str(tmp_path / "c"), cut="a")

    await another
    assert sums_of(tmp_path / "c", answers) == {1.0}


async def test_a_hold_ends_by_itself_if_nobody_saves(start_servers: Start) -> None:
    saver, other = await started(start_servers)
    await hold(saver, for_s=0.2)

    await other.push(ones())

    assert await saver.pull("flat") == pytest.approx(np.ones(8))


async def test_a_save_after_its_hold_has_ended_says_so(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, _ = await started(start_servers)
    await hold(saver, cut="a")
    await hold(saver, cut="b")

    answers = await saver.ask("save", dirname=str(tmp_path / "c"), cut="a")

    assert [answer.fields["held"] for answer in answers] == [False, False]


async def test_a_push_that_is_held_for_long_is_refused_unchanged_and_may_be_repeated(
    start_servers: Start,
) -> None:
    saver, other = await started(start_servers)
    messages = other.push_messages(ones(), step=0)
    await hold(saver)

    with pytest.raises(PushesHeldError, match="worker 1 waited"):
        await other.call(0, "push", messages[0], timeout_s=0.5)

    await hold(saver, for_s=0)
    await other.send("push", messages)
    assert await saver.pull("flat") == pytest.approx(np.ones(8))


async def test_the_failure_of_the_job_ends_a_held_push(start_servers: Start) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(FLAT)
    await hold(worker)
    pushing = begin(worker.push({"flat": np.ones(8, np.float32)}))
    await asyncio.sleep(0.05)

    cluster.routes[0].fail(JobFailedError(role="worker", index=3, reason="gone"))

    with pytest.raises(JobFailedError):
        await pushing


@pytest.mark.parametrize(
    "wrong",
    [
        {"cut": ""},
        {"cut": "x" * 65},
        {"cut": 3},
        {"for_s": -1},
        {"for_s": 1e9},
        {"targets": None},
        {"targets": [[1, 2]]},
        {"targets": [["1", 2, 4]]},
    ],
    ids=str,
)
async def test_a_malformed_hold_is_refused_and_holds_nothing(
    start_servers: Start, wrong: dict[str, Any]
) -> None:
    saver, other = await started(start_servers)

    with pytest.raises(MalformedMessageError):
        await saver.ask("hold", **{"cut": "a", "for_s": 9.0, "targets": [], **wrong})

    await other.push(ones())


async def test_nobody_holds_before_there_are_tables_or_for_a_former_self(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    old, new = cluster.worker(0, incarnation=1), cluster.worker(0, incarnation=2)
    with pytest.raises(TablesNotDeclaredError):
        await hold(old)
    await new.declare(FLAT)

    with pytest.raises(FencedError):
        await hold(old)
    with pytest.raises(FencedError):
        await hold(cluster.worker(0, incarnation=1 << 62))
    await new.push({"flat": np.ones(8, np.float32)})


async def test_saving_everywhere_is_a_consistent_cut_while_others_push(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, other = await started(start_servers)
    enough = asyncio.Event()

    async def train() -> None:
        step = 0
        while not enough.is_set():
            await other.push(ones(), step=step)
            step += 1

    async with pservers_of(saver) as (pservers, author), asyncio.TaskGroup() as tasks:
        tasks.create_task(train())
        for number in range(5):
            folder = tmp_path / str(number)
            answers, cut = await save_everywhere(
                pservers, author, str(folder), in_sync=False, clock=SystemClock()
            )
            assert cut.consistent, cut
            assert len(sums_of(folder, answers)) == 1
        enough.set()


async def test_a_push_that_never_arrives_makes_a_checkpoint_that_says_so(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, frozen = await started(start_servers)
    await frozen.call(0, "push", frozen.push_messages(ones(), step=0)[0])
    clock = FakeClock()

    async with pservers_of(saver) as (pservers, author):
        saving = begin(
            save_everywhere(pservers, author, str(tmp_path), in_sync=False, clock=clock)
        )
        while not saving.done():
            await asyncio.sleep(0.001)
            await clock.advance(0.5)
        answers, cut = await saving

    assert not cut.consistent
    assert "pserver 1 lacks push 1 of worker 1, which pserver 0 has" in cut.reason
    assert cut.reason.endswith("after 10 s")
    assert sums_of(tmp_path, answers) == {0.0, 1.0}
    await saver.push(ones())  # nothing is held any more


async def test_a_worker_that_was_lost_within_a_push_is_not_waited_for(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, lost = await started(start_servers, elastic=True)
    await lost.call(0, "push", lost.push_messages(ones(), step=0)[0])
    cluster = lost.cluster
    for routes in cluster.routes:
        routes.lose(Rank(lost.rank), lost.incarnation)

    async with pservers_of(saver) as (pservers, author):
        _, cut = await save_everywhere(
            pservers, author, str(tmp_path), in_sync=False, clock=FakeClock()
        )

    assert not cut.consistent
    assert "whose process 1 is gone" in cut.reason


async def test_in_sync_all_pservers_save_after_the_same_step_or_say_so(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, other = await started(start_servers, mode="sync")
    for worker in (saver, other):
        await worker.push(ones(), step=0)
    async with pservers_of(saver) as (pservers, author):
        save = partial(save_everywhere, pservers, author, in_sync=True, clock=SystemClock())
        _, cut = await save(str(tmp_path / "a"))
        assert cut.consistent
        for worker in (saver, other):  # as no worker does: half of a step
            await worker.call(0, "push", worker.push_messages(ones(), step=1)[0])
        _, cut = await save(str(tmp_path / "b"))

    assert cut == replace(cut, consistent=False)
    assert cut.reason == "the pservers saved after different steps: 2, 2, 1, 1"


async def test_after_a_save_that_failed_nothing_is_held(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, other = await started(start_servers)
    (tmp_path / "file").write_text("in the way")
    async with pservers_of(saver) as (pservers, author):
        with pytest.raises(CheckpointWriteError):
            await save_everywhere(
                pservers,
                author,
                str(tmp_path / "file"),
                in_sync=False,
                clock=SystemClock(),
            )

    await other.push(ones())
    assert await other.pull("flat") == pytest.approx(np.ones(8))


async def test_a_save_that_is_apart_is_answered_when_its_image_is_taken(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, other = await started(start_servers)
    begin_it: dict[str, Any] = {"dirname": str(tmp_path), "apart": "one"}
    first = await saver.ask("save", **begin_it)
    again = await saver.ask("save", **begin_it)  # as if the answer had been lost
    assert [each.fields for each in again] == [each.fields for each in first]
    await other.push(ones())

    written = await saver.ask("saved", apart="one", wait_s=20, timeout_s=LATE_S)
    assert all(each.fields["done"] for each in written)
    assert sums_of(tmp_path, written) == {0.0}


async def test_a_save_that_another_process_had_begun_is_gone(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, _ = await started(start_servers)
    await saver.ask("save", dirname=str(tmp_path), apart="one")
    await saver.ask("save", dirname=str(tmp_path), apart="two")

    with pytest.raises(SaveGoneError):
        await saver.ask("saved", apart="one", wait_s=0)
    wrongs: list[dict[str, Any]] = [{"apart": "", "wait_s": 1}, {"apart": "two", "wait_s": 1e9}]
    for wrong in wrongs:
        with pytest.raises(MalformedMessageError):
            await saver.ask("saved", **wrong)


async def test_a_save_that_another_replaces_before_its_image_is_taken_is_gone_too(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, _ = await started(start_servers, mode="sync")
    who = {"rank": saver.rank, "incarnation": saver.incarnation}
    early = {**who, "dirname": str(tmp_path), "apart": "one", "min_version": 9}
    waiting = begin(saver.call(0, "save", Message(fields=early), LATE_S))
    await asyncio.sleep(0)
    await saver.call(0, "status", Message(fields={}), LATE_S)  # comes behind it
    await saver.ask("save", dirname=str(tmp_path), apart="two")

    with pytest.raises(SaveGoneError):
        await waiting


async def test_a_save_begins_again_where_a_pserver_lets_pushes_go_on_too_early(
    start_servers: Start, tmp_path: Path
) -> None:
    saver, _ = await started(start_servers)
    holding = saver.cluster.routes[1]._checkpoints.holding
    begin_save, found = holding.begin_save, list[bool]()

    def once(name: str) -> bool:
        if not found:  # as a process that has started since
            holding.end(name)
        found.append(begin_save(name))
        return found[-1]

    holding.begin_save = once  # type: ignore[method-assign]
    async with pservers_of(saver) as (pservers, author):
        _, cut = await save_everywhere(
            pservers, author, str(tmp_path), in_sync=False, clock=SystemClock()
        )

    assert found == [False, True]
    assert cut.consistent, cut


async def test_a_former_self_gives_no_save_up_and_loads_nothing(
    start_servers: Start, tmp_path: Path
) -> None:
    cluster = await start_servers(1)
    old, new = cluster.worker(0, incarnation=1), cluster.worker(0, incarnation=2)
    await old.declare(FLAT)
    answers = await old.ask("save", dirname=str(tmp_path / "old"))
    await new.declare(FLAT)
    await new.push({"flat": np.ones(8, np.float32)})
    await new.ask("save", dirname=str(tmp_path / "new"), apart="new")

    wrongs: list[tuple[str, dict[str, Any]]] = [
        ("save", {"dirname": str(tmp_path / "late"), "apart": "late"}),
        ("save", {"dirname": str(tmp_path / "late")}),
        ("saved", {"apart": "new", "wait_s": 0}),
        ("load", {"dirname": str(tmp_path / "old")}),
    ]
    for operation, fields in wrongs:
        with pytest.raises(FencedError):
            await old.ask(operation, **fields)
    (written,) = await new.ask("saved", apart="new", wait_s=20, timeout_s=LATE_S)

    assert written.fields["done"]
    assert sums_of(tmp_path / "new", [written]) == {1.0}
    assert sums_of(tmp_path / "old", answers) == {0.0}
    assert await new.pull("flat") == pytest.approx(np.ones(8))


async def test_a_save_that_waits_for_a_step_is_refused_when_its_worker_is_replaced(
    start_servers: Start, tmp_path: Path
) -> None:
    cluster = await start_servers(1)
    old, new = cluster.worker(0, incarnation=1), cluster.worker(0, incarnation=2)
    await old.declare(FLAT, mode="sync")
    who = {"rank": 0, "incarnation": 1}
    early = {**who, "dirname": str(tmp_path / "c"), "apart": "one", "min_version": 1}
    waiting = begin(old.call(0, "save", Message(fields=early), LATE_S))
    await asyncio.sleep(0)
    await old.call(0, "status", Message(fields={}), LATE_S)  # comes behind it
    await new.declare(FLAT, mode="sync")
    await new.push({"flat": np.ones(8, np.float32)})

    with pytest.raises(FencedError):
        await waiting
    assert not (tmp_path / "c").exists()
