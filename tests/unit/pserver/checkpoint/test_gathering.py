"""Workers are asked for their states through requests that wait for a question."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paramfleet_pserver.checkpoint.gathering import Gathering
from paramfleet_pserver.waiting.asking import Asking
from paramfleet_shared.checkpoint.manifest import FilePart
from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank

CLOCK = SystemClock()
ADAGRAD = OptimizerSpec(rule="adagrad")
ROWS = TableSpec(name="rows", kind="sparse", dim=2, optimizer=OptimizerSpec(rule="sum"))
FLAT = TableSpec(name="flat", kind="dense", size=5, optimizer=OptimizerSpec(rule="sum"))
PART = FilePart(
    ids=np.arange(3), values=np.ones((3, 2), np.float32), states=np.empty((3, 0), np.float32)
)
RULES = {"rows": ADAGRAD, "flat": ADAGRAD}

Answer = Callable[[Message], Message]


def holds(number: float, *, width: int = 2, **fields: Any) -> Answer:
    """Return how a worker answers that has the same number everywhere."""

    def answer(question: Message) -> Message:
        ids = question.tensors.get("ids")
        if ids is None:
            shape = (int(question.fields["stop"]) - int(question.fields["start"]), 1)
        else:
            shape = (len(ids), width)
        return Message(
            fields={"own": 3, "before": 4, **fields},
            tensors={
                "counts": np.ones(shape[0], np.int64),
                "states": np.full(shape, number, np.float32),
            },
        )

    return answer


async def work(asking: Asking, rank: int, answer: Answer) -> int:
    """Answer until nothing more is asked; return how many questions there were."""
    number, message, asked = 0, Message(), 0
    while not asking.is_over(Rank(rank)):
        question = await asking.serve(Rank(rank), number, message, deadline=None)
        if question is not None:
            asked += 1
            number, message = question.number, answer(question.message)
    return asked


async def gathered(
    workers: dict[int, Answer], *, expects: int, gone: tuple[int, ...] = (), **options: Any
) -> tuple[Gathering, FilePart, FilePart]:
    asking = Asking(CLOCK, **options)
    for rank in gone:
        asking.leave(Rank(rank))
    async with asyncio.TaskGroup() as tasks:
        for rank, answer in workers.items():
            tasks.create_task(work(asking, rank, answer))
        gathering = Gathering(asking, [Rank(rank) for rank in range(expects)], RULES)
        rows = await gathering.with_states(ROWS, PART)
        values = FilePart(
            values=np.ones(4, np.float32), states=np.empty((0, 4), np.float32), start=1
        )
        flat = await gathering.with_states(FLAT, values)
        asking.end()
    return gathering, rows, flat


async def test_every_worker_is_asked_and_one_state_comes_of_all() -> None:
    gathering, rows, flat = await gathered({0: holds(1.0), 1: holds(2.0)}, expects=2)

    assert rows.states.tolist() == [[3.0, 3.0]] * 3
    assert flat.states.tolist() == [[3.0] * 4]
    assert gathering.spec(ROWS).optimizer == ADAGRAD
    assert gathering.version(ROWS, 99) == 4 + 3 + 3
    assert gathering.version(FLAT, 99) == 4 + 3
    assert gathering.outcome.workers == (0, 1)


async def test_what_a_pserver_keeps_of_its_rows_is_not_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracked, rule = (OptimizerSpec(rule=each, tracks="step") for each in ("sum", "adagrad"))
    monkeypatch.setitem(RULES, "rows", rule)
    spec = replace(ROWS, optimizer=tracked)
    part = replace(PART, states=np.array([[7.0], [8.0], [9.0]], np.float32))
    asking = Asking(CLOCK)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work(asking, 0, holds(1.0, width=3)))
        gathering = Gathering(asking, [Rank(0)], RULES)
        found = await gathering.with_states(spec, part)
        asking.end()

    assert found.states.tolist() == [[1, 1, 7], [1, 1, 8], [1, 1, 9]]


async def test_who_left_and_who_is_silent_are_left_out_by_name() -> None:
    workers = {0: holds(1.0), 3: holds(1.0, lack="its optimizer is another")}
    gathering, rows, _ = await gathered(workers, expects=4, gone=(1,), patience_s=0.2)

    assert (rows.states == 1.0).all()
    assert gathering.outcome.workers == (0,)
    assert gathering.outcome.left_out == {
        1: "it left before",
        2: "it did not answer in time",
        3: "its optimizer is another",
    }


@pytest.mark.parametrize("number", [-1.0, float("nan")])
async def test_states_that_no_training_makes_are_left_out(number: float) -> None:
    gathering, rows, _ = await gathered({0: holds(1.0), 1: holds(number)}, expects=2)

    assert (rows.states == 1.0).all()
    assert gathering.outcome.workers == (0,)
    assert "adagrad" in gathering.outcome.left_out[1] or "NaN" in gathering.outcome.left_out[1]


async def test_many_rows_are_asked_for_some_at_a_time(monkeypatch: Any) -> None:
    monkeypatch.setattr("paramfleet_pserver.checkpoint.gathering.QUESTION_VALUES", 4)
    seen: list[int] = []

    def answer(question: Message) -> Message:
        seen.append(len(question.tensors["ids"]) if question.tensors else 0)
        return holds(1.0)(question)

    _, rows, flat = await gathered({0: answer}, expects=1)

    assert seen == [2, 1, 0]
    assert (rows.states == 1.0).all()
    assert (flat.states == 1.0).all()


async def test_a_question_stands_until_it_is_answered() -> None:
    asking = Asking(CLOCK)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(asking.serve(Rank(1), 0, Message(), deadline=None))
        asked = tasks.create_task(asking.ask([Rank(1)], Message(fields={"about": "x"})))
        first = await waiting
        again = await asking.serve(Rank(1), 0, Message(), deadline=None)  # its answer was lost
        assert first is not None
        assert again is first
        said = Message(fields={"own": 1})
        done = tasks.create_task(asking.serve(Rank(1), first.number, said, deadline=None))
        assert (await asked)[Rank(1)] is said
        asking.end()
        assert await done is None


async def test_nothing_asked_ends_before_the_deadline_and_a_failed_job_at_once() -> None:
    asking = Asking(CLOCK)
    soon = CLOCK.monotonic() + 0.3
    assert await asking.serve(Rank(1), 0, Message(), deadline=soon) is None
    assert not asking.is_over(Rank(1))

    asking.fail(JobFailedError(role="worker", index=1, reason="gone"))

    with pytest.raises(JobFailedError):
        await asking.serve(Rank(1), 0, Message(), deadline=None)


async def test_when_the_first_worker_has_left_all_others_may_go_until_it_is_back() -> None:
    asking = Asking(CLOCK)
    asking.leave(Rank(0))
    assert asking.is_over(Rank(1))

    asking.join(Rank(0))

    assert not asking.is_over(Rank(1))
