"""LocalSGD: optimizers of dense tables take each worker's mean difference as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from paramfleet.training.job import IncarnationUsedError, require_unused
from paramfleet.transport.requests import Author
from paramfleet_shared.errors.served import GeoRuleError, ModeMismatchError, OperationModeError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.testing.faults import FaultPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

SIZE = 13
SGD = TableSpec(name="flat", kind="dense", size=SIZE, optimizer=OptimizerSpec(rule="sgd"))
NESTEROV = TableSpec(
    name="flat",
    kind="dense",
    size=SIZE,
    optimizer=OptimizerSpec(rule="momentum", momentum=0.9, nesterov=True),
)


async def crew(cluster: Cluster, num: int, spec: TableSpec) -> list[Worker]:
    workers = [cluster.worker(rank) for rank in range(num)]
    for worker in workers:
        await worker.declare(spec, mode="localsgd", worker_num=num)
    return workers


async def exchange(
    worker: Worker, delta: np.ndarray, *, lr: float | None = 1.0, **fields: Any
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the values after a worker's difference, and the first server's fields."""
    about = {"ack": 0, "max_rows": 1} | ({} if lr is None else {"lr": lr})
    messages = worker.messages(
        {"flat": delta}, tensor="deltas", extra=lambda *_: about, **{"step": 0, **fields}
    )
    answers = await worker.send("exchange", messages)
    return np.concatenate([a.tensors["0.rows"] for a in answers]), dict(answers[0].fields)


def ramp(factor: float) -> np.ndarray:
    return np.arange(SIZE, dtype=np.float32) * np.float32(factor)


async def test_two_workers_differences_make_their_mean(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(2), 2, SGD)

    await exchange(ada, ramp(0.4))
    values, fields = await exchange(bob, ramp(-0.2))

    np.testing.assert_allclose(values, ramp(-0.1), rtol=1e-6)
    assert fields["workers"] == 2


async def test_one_who_left_is_divided_by_no_more(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(1), 2, SGD)
    await exchange(ada, ramp(1.0))

    await bob.ask("leave", step=0)
    values, fields = await exchange(ada, ramp(1.0))

    np.testing.assert_allclose(values, ramp(-1.5), rtol=1e-6)
    assert fields["workers"] == 1


async def test_one_who_left_counts_in_the_steps_that_it_took(start_servers: Start) -> None:
    """Whose last exchange comes last has the same share as who was faster."""
    ada, bob = await crew(await start_servers(2), 2, SGD)
    await exchange(bob, ramp(1.0), step=4)
    await bob.ask("leave", step=5)

    values, _ = await exchange(ada, ramp(1.0), step=4)
    np.testing.assert_allclose(values, ramp(-1.0), rtol=1e-6)
    values, _ = await exchange(ada, ramp(1.0), step=5)
    np.testing.assert_allclose(values, ramp(-2.0), rtol=1e-6)


@pytest.mark.parametrize("has_it", [0, 1])
async def test_what_a_worker_sent_before_it_died_counts_once_on_every_server(
    start_servers: Start, has_it: int
) -> None:
    """One server has it; the worker's next process trains those steps again."""
    cluster = await start_servers(2, returning=True)
    ada, bob = await crew(cluster, 2, SGD)
    about = {"ack": 0, "max_rows": 1, "lr": 1.0}
    sent = bob.messages({"flat": ramp(1.0)}, tensor="deltas", extra=lambda *_: about, step=2)
    await bob.call(has_it, "exchange", sent[has_it])

    new = cluster.worker(1, incarnation=2)
    answers = await new.declare(SGD, mode="localsgd", worker_num=2)
    assert sorted(answer.fields["step"] for answer in answers) == [0, 3]
    again = new.messages({"flat": ramp(1.0)}, tensor="deltas", extra=lambda *_: about, step=2)
    await new.send("exchange", again)
    values, _ = await exchange(ada, ramp(0.0))
    np.testing.assert_allclose(values, ramp(-0.5), rtol=1e-6)

    later = new.messages({"flat": ramp(1.0)}, tensor="deltas", extra=lambda *_: about, step=5)
    await new.send("exchange", later)
    values, _ = await exchange(ada, ramp(0.0))
    np.testing.assert_allclose(values, ramp(-1.0), rtol=1e-6)


async def test_a_process_learns_that_its_incarnation_has_written_before(
    start_servers: Start,
) -> None:
    """A registry that lost all it knew gives it out again; its changes would be dropped."""
    cluster = await start_servers(2, returning=True)
    ada, bob = await crew(cluster, 2, SGD)
    await exchange(bob, ramp(1.0))
    own = Author(rank=1, incarnation=1)

    again = await cluster.worker(1).declare(SGD, mode="localsgd", worker_num=2)
    with pytest.raises(IncarnationUsedError, match="worker 1 got incarnation 1"):
        require_unused(own, again)

    require_unused(own, await ada.declare(SGD, mode="localsgd", worker_num=2))
    newer = cluster.worker(1, incarnation=2)
    require_unused(own, await newer.declare(SGD, mode="localsgd", worker_num=2))


async def test_one_who_joins_late_is_divided_by_at_once(start_servers: Start) -> None:
    cluster = await start_servers(1, elastic=True)
    (ada,) = await crew(cluster, 1, SGD)
    await exchange(ada, ramp(1.0))

    await cluster.worker(5).declare(SGD, mode="localsgd", worker_num=9)
    values, fields = await exchange(ada, ramp(1.0))

    np.testing.assert_allclose(values, ramp(-1.5), rtol=1e-6)
    assert fields["workers"] == 2


async def test_the_outer_optimizer_is_torchs_on_the_differences(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(2), 2, NESTEROV)
    reference = torch.zeros(SIZE, requires_grad=True)
    outer = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=True)

    for number, worker in enumerate([ada, bob, bob, ada], start=1):
        values, _ = await exchange(worker, ramp(0.1 * number), lr=0.7)
        reference.grad = torch.from_numpy(ramp(0.1 * number) / np.float32(2))
        outer.step()
        np.testing.assert_allclose(values, reference.detach().numpy(), rtol=1e-6)


async def test_a_difference_whose_answer_was_lost_counts_once(start_servers: Start) -> None:
    plan = FaultPlan().drop_reply(of="exchange", nth=1)
    (ada,) = await crew(await start_servers(1, faults=plan), 1, NESTEROV)

    values, _ = await exchange(ada, ramp(1.0))

    assert len(plan.fired) == 1
    np.testing.assert_allclose(values, ramp(-1.9), rtol=1e-6)


async def test_a_worker_hears_what_the_others_said_last_of_their_losses(
    start_servers: Start,
) -> None:
    ada, bob, eve = await crew(await start_servers(1), 3, SGD)
    nothing = ramp(0.0)

    _, first = await exchange(ada, nothing, loss=3.0)
    _, silent = await exchange(bob, nothing)
    await exchange(eve, nothing, loss=5.0)
    await exchange(ada, nothing, loss=2.0)
    _, last = await exchange(bob, nothing, loss=1.0)
    await eve.ask("leave", step=0)
    _, after = await exchange(bob, nothing)

    assert first["losses"] == []
    assert silent["losses"] == [3.0]
    assert sorted(last["losses"]) == [2.0, 5.0]
    assert after["losses"] == [2.0]


async def test_values_may_be_answered_wider_than_differences_came(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(1), 1, SGD)
    part = {
        "table": "flat", "ack": 0, "max_rows": 1, "lr": 1.0,
        "wire": "float16", "answer_wire": "float32",
    }  # fmt: skip
    head = {"rank": 0, "incarnation": 1, "sequence": 1, "step": 0, "parts": [part]}
    deltas = {"0.deltas": np.full(SIZE, 0.1, np.float16)}

    (answer,) = await ada.send("exchange", [Message(fields=head, tensors=deltas)])

    np.testing.assert_array_equal(answer.tensors["0.rows"], -np.float32(np.float16(0.1)))
    head["sequence"] = 2
    part |= {"answer_wire": "float64"}
    with pytest.raises(MalformedMessageError):
        await ada.send("exchange", [Message(fields=head, tensors=deltas)])


async def test_a_push_is_no_operation_of_localsgd_and_modes_dont_mix(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    (ada, _) = await crew(cluster, 2, SGD)

    with pytest.raises(OperationModeError):
        await ada.push({"flat": ramp(1.0)})
    with pytest.raises(ModeMismatchError, match="localsgd"):
        await cluster.worker(1).declare(SGD, mode="async", worker_num=2)


async def test_rows_are_added_up_as_in_geo(start_servers: Start) -> None:
    cluster = await start_servers(1)
    rows = TableSpec(name="rows", kind="sparse", dim=2, optimizer=OptimizerSpec(rule="sum"))
    workers = [cluster.worker(rank) for rank in range(2)]
    for worker in workers:
        await worker.declare(SGD, rows, mode="localsgd", worker_num=2)
    ids = np.array([7], np.int64)

    await workers[0].exchange({"rows": (ids, np.ones((1, 2), np.float32))})
    received = await workers[1].exchange({"rows": (ids[:0], np.empty((0, 2), np.float32))})

    np.testing.assert_array_equal(received["rows"].rows[7], [1, 1])
    adam = TableSpec(name="adam", kind="sparse", optimizer=OptimizerSpec(rule="adam"))
    with pytest.raises(GeoRuleError, match="'adam'"):
        await workers[0].declare(adam, mode="localsgd", worker_num=2)
