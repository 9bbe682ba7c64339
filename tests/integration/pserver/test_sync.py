"""Sync training equals one process with the whole batch, whatever the order of arrival."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.errors.served import (
    BadWeightError,
    NotAMemberError,
    PushRepeatedError,
    StepIncompleteError,
    StepPassedError,
    StepTooEarlyError,
    TablesDamagedError,
)
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.testing.faults import FaultPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]
    Parts = dict[str, Any]

NUM_IDS, DIM, SIZE = 40, 3, 53
OPTIMIZERS = {
    **{
        rule: OptimizerSpec(rule=rule, eps=1e-6)
        for rule in ("sgd", "momentum", "adagrad", "adam", "sum", "rowwise_adagrad")
    },
    "adamw": OptimizerSpec(rule="adamw", eps=1e-6),
    "ftrl": OptimizerSpec(rule="ftrl", beta=0.5, l1=0.05, l2=0.1),
}
ROWS = TableSpec(name="rows", kind="sparse", dim=DIM)
FLAT = TableSpec(name="flat", kind="dense", size=SIZE)


@dataclass
class OneProcess:
    """The optimizers in float64; only rows that have a gradient move."""

    optimizer: OptimizerSpec
    values: np.ndarray
    states: dict[str, np.ndarray] = field(default_factory=dict)
    steps: int = 0

    def state(self, name: str) -> np.ndarray:
        return self.states.setdefault(name, np.zeros_like(self.values))

    def step(self, grads: np.ndarray, *, moved: np.ndarray, lr: float) -> None:
        """Move the rows ``moved`` (a mask), as torch.optim does."""
        self.steps += 1
        g, o = grads[moved], self.optimizer
        if o.rule == "sum":
            self.values[moved] += g
            return
        update = g
        if o.rule == "momentum":
            buffer = self.state("buffer")
            buffer[moved] = o.constants["momentum"] * buffer[moved] + g
            update = buffer[moved]
        elif o.rule == "adagrad":
            total = self.state("total")
            total[moved] += g * g
            update = g / (np.sqrt(total[moved]) + o.constants["eps"])
        elif o.rule == "rowwise_adagrad":
            squares = g * g if g.ndim == 1 else (g * g).mean(axis=1, keepdims=True)
            total = self.state("total")
            total[moved] += squares  # all of a row's columns are alike
            update = g / (np.sqrt(total[moved]) + o.constants["eps"])
        elif o.rule in {"adam", "adamw"}:
            update = self._adam(g, moved)
        elif o.rule == "ftrl":
            self.values[moved] = self._ftrl(g, moved, lr)
            return
        self.values[moved] -= lr * update

    def _ftrl(self, g: np.ndarray, moved: np.ndarray, alpha: float) -> np.ndarray:
        """McMahan et al., 2013, algorithm 1."""
        z, n, w = self.state("z"), self.state("n"), self.values[moved]
        beta, l1, l2 = (self.optimizer.constants[name] for name in ("beta", "l1", "l2"))
        sigma = (np.sqrt(n[moved] + g * g) - np.sqrt(n[moved])) / alpha
        z[moved] += g - sigma * w
        n[moved] += g * g
        beyond = z[moved] - np.sign(z[moved]) * l1
        found: np.ndarray = -beyond / ((beta + np.sqrt(n[moved])) / alpha + l2)
        return np.where(np.abs(z[moved]) <= l1, 0.0, found)

    def _adam(self, g: np.ndarray, moved: np.ndarray) -> np.ndarray:
        mean, square = self.state("mean"), self.state("square")
        beta1, beta2, eps = (self.optimizer.constants[n] for n in ("beta1", "beta2", "eps"))
        mean[moved] = beta1 * mean[moved] + (1 - beta1) * g
        square[moved] = beta2 * square[moved] + (1 - beta2) * g * g
        correction = np.sqrt(1 - beta2**self.steps)
        if moved.all():  # dense: torch.optim.Adam; lazy: torch.optim.SparseAdam
            dense: np.ndarray = mean / (np.sqrt(square) / correction + eps)
            whole: np.ndarray = dense / (1 - beta1**self.steps)
            return whole
        rate = correction / (1 - beta1**self.steps)
        lazy: np.ndarray = rate * mean[moved] / (np.sqrt(square[moved]) + eps)
        return lazy


def batches(num_workers: int, num_steps: int, seed: int = 0) -> list[list[Parts]]:
    """Return what each worker pushes in each step: rows with repeats, and all dense."""
    dice = np.random.default_rng(seed)

    def parts() -> Parts:
        ids = dice.integers(0, NUM_IDS // 2, dice.integers(0, 12)) * 7
        rows = dice.standard_normal((len(ids), DIM)).astype(np.float32)
        return {"rows": (ids, rows), "flat": dice.standard_normal(SIZE).astype(np.float32)}

    return [[parts() for _ in range(num_workers)] for _ in range(num_steps)]


def in_one_process(
    optimizer: OptimizerSpec, steps: list[list[Parts]], weights: list[float], lr: float
) -> tuple[np.ndarray, np.ndarray]:
    rows = OneProcess(optimizer, np.zeros((NUM_IDS * 7, DIM)))
    flat = OneProcess(optimizer, np.zeros(SIZE))
    for pushed in steps:
        grads, moved = np.zeros_like(rows.values), np.zeros(len(rows.values), np.bool_)
        mean = np.zeros(SIZE)
        for weight, parts in zip(weights, pushed, strict=True):
            ids, numbers = parts["rows"]
            np.add.at(grads, ids, weight / sum(weights) * numbers.astype(np.float64))
            moved[ids] = True
            mean += weight / sum(weights) * parts["flat"]
        rows.step(grads, moved=moved, lr=lr)
        flat.step(mean, moved=np.ones(SIZE, np.bool_), lr=lr)
    return rows.values, flat.values


async def crew(cluster: Cluster, num: int, *specs: TableSpec) -> list[Worker]:
    workers = [cluster.worker(rank) for rank in range(num)]
    for worker in workers:
        await worker.declare(*specs, mode="sync", worker_num=num)
    return workers


async def train(
    workers: list[Worker],
    steps: list[list[Parts]],
    *,
    weights: list[float],
    lr: float = 0.1,
    dice: random.Random | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Push every step in the workers' order or a shuffled one; return the values."""
    for step, pushed in enumerate(steps):
        sends = [
            (server, worker, message)
            for worker, parts, weight in zip(workers, pushed, weights, strict=True)
            for server, message in enumerate(
                worker.push_messages(parts, step=step, lr=lr, weight=weight)
            )
        ]
        if dice is not None:
            dice.shuffle(sends)
        for server, worker, message in sends:
            await worker.call(server, "push", message)
        for worker in workers:
            await worker.pull("flat", min_version=step + 1)
    everything = list(range(NUM_IDS * 7))
    last = len(steps)
    return (
        await workers[0].pull("rows", everything, min_version=last),
        await workers[0].pull("flat", min_version=last),
    )


def table_of(spec: TableSpec, optimizer: OptimizerSpec) -> TableSpec:
    return replace(spec, optimizer=optimizer)


@pytest.mark.parametrize("rule", OPTIMIZERS)
@pytest.mark.parametrize(("num_workers", "num_servers"), [(1, 1), (2, 3), (4, 2)])
async def test_any_number_of_workers_equals_one_process_with_the_whole_batch(
    start_servers: Start, rule: Any, num_workers: int, num_servers: int
) -> None:
    optimizer = OPTIMIZERS[rule]
    cluster = await start_servers(num_servers)
    workers = await crew(
        cluster, num_workers, table_of(ROWS, optimizer), table_of(FLAT, optimizer)
    )
    weights = [float(rank + 1) for rank in range(num_workers)]
    steps = batches(num_workers, 6)

    rows, flat = await train(workers, steps, weights=weights)

    expected_rows, expected_flat = in_one_process(optimizer, steps, weights, lr=0.1)
    np.testing.assert_allclose(rows, expected_rows, rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(flat, expected_flat, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("rule", OPTIMIZERS)
async def test_the_order_of_arrival_does_not_change_one_bit(
    start_servers: Start, rule: Any
) -> None:
    optimizer = OPTIMIZERS[rule]
    steps, weights = batches(4, 4), [1.0, 2.0, 0.5, 3.0]
    results = []

    for seed in range(3):
        cluster = await start_servers(2)
        workers = await crew(cluster, 4, table_of(ROWS, optimizer), table_of(FLAT, optimizer))
        results.append(await train(workers, steps, weights=weights, dice=random.Random(seed)))

    for rows, flat in results[1:]:
        np.testing.assert_array_equal(rows, results[0][0])
        np.testing.assert_array_equal(flat, results[0][1])


async def test_the_number_of_servers_does_not_change_one_bit(start_servers: Start) -> None:
    optimizer = OptimizerSpec(rule="adam")
    steps, weights = batches(2, 4), [1.0, 3.0]
    results = []

    for num_servers in (1, 3):
        cluster = await start_servers(num_servers)
        workers = await crew(cluster, 2, table_of(ROWS, optimizer), table_of(FLAT, optimizer))
        results.append(await train(workers, steps, weights=weights))

    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def ones(value: float = 1.0) -> Parts:
    return {"flat": np.full(SIZE, value, np.float32)}


async def test_workers_with_other_learning_rates_are_warned_of_once(
    start_servers: Start, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bob = await crew(await start_servers(1), 2, FLAT)
    ones = {"flat": np.ones(SIZE, np.float32)}

    with caplog.at_level(logging.WARNING):
        for step in range(3):
            await ada.push(ones, step=step, lr=0.5)
            await bob.push(ones, step=step, lr=0.5 if step == 0 else 0.25)
            await ada.pull("flat", min_version=step + 1)

    (said,) = [vars(each) for each in caplog.records if each.msg == "pserver.rates_differ"]
    assert (said["table"], said["step"]) == ("flat", 2)
    assert said["rates"] == "0.5 of worker 0, 0.25 of worker 1"


async def test_a_pull_of_the_next_version_waits_for_the_last_push(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(1), 2, FLAT)
    (kept,) = await ada.push(ones(), step=0)
    assert kept.fields["versions"] == [0]
    np.testing.assert_array_equal(await bob.pull("flat"), np.zeros(SIZE, np.float32))

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(ada.pull("flat", min_version=1))
        (last,) = await bob.push(ones(3.0), step=0)

    np.testing.assert_array_equal(waiting.result(), np.full(SIZE, -2, np.float32))
    assert last.fields["slowest"] == 1


async def test_a_push_kept_or_applied_is_a_success_when_it_is_sent_again(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2, FLAT)
    (message,) = ada.push_messages(ones(), step=0)
    await ada.call(0, "push", message)

    kept = await ada.call(0, "push", message)
    await bob.push(ones(), step=0)
    applied = await ada.call(0, "push", message)

    assert kept.fields["duplicate"] is applied.fields["duplicate"] is True
    np.testing.assert_array_equal(
        await ada.pull("flat", min_version=1), np.full(SIZE, -1, np.float32)
    )


async def test_a_push_without_any_table_counts_for_its_step_and_may_be_repeated(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2, FLAT)
    await ada.push(ones(), step=0)

    push = bob.push_messages({}, step=0)
    for duplicate in (False, True):
        (answer,) = await bob.send("push", push)
        assert answer.fields["duplicate"] is duplicate

    np.testing.assert_array_equal(
        await ada.pull("flat", min_version=1), np.full(SIZE, -0.5, np.float32)
    )


async def test_a_lost_answer_does_not_hold_a_step(start_servers: Start) -> None:
    plan = FaultPlan().drop_reply(of="push", nth=1).duplicate_request(of="push", nth=3)
    cluster = await start_servers(1, faults=plan)
    ada, bob = await crew(cluster, 2, FLAT)

    for step in range(2):
        await ada.push(ones(), step=step)
        await bob.push(ones(), step=step)

    assert len(plan.fired) == 2
    np.testing.assert_array_equal(
        await ada.pull("flat", min_version=2), np.full(SIZE, -2, np.float32)
    )


async def test_a_worker_out_of_data_leaves_and_the_waiting_step_completes(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2, FLAT)
    await ada.push(ones(), step=0)
    await bob.push(ones(), step=0)
    await ada.push(ones(4.0), step=1)
    assert cluster.routes[0].facts()["waiting_for"] == [1]

    await bob.ask("leave", step=1)

    np.testing.assert_array_equal(
        await ada.pull("flat", min_version=2), np.full(SIZE, -5, np.float32)
    )
    with pytest.raises(NotAMemberError):
        await bob.push(ones(), step=1)
    with pytest.raises(NotAMemberError):
        await (cluster.worker(5)).ask("leave", step=1)


async def test_a_pull_that_waits_in_vain_names_the_missing_workers(
    start_servers: Start,
) -> None:
    ada, _ = await crew(await start_servers(1), 2, FLAT)
    await ada.push(ones(), step=0)

    with pytest.raises(StepIncompleteError) as caught:
        await ada.pull("flat", min_version=1, timeout_s=2.0)

    error = caught.value
    assert (error.version, error.step, error.missing, error.retryable) == (1, 0, [1], True)
    assert error.remote
    assert 0 < error.waited_s < 2.0


async def test_a_pull_nobody_is_left_to_answer_says_so(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(1), 1, FLAT)
    await ada.ask("leave", step=0)

    with pytest.raises(StepIncompleteError, match="no worker is left"):
        await ada.pull("flat", min_version=1, timeout_s=0.2)


async def test_pushes_of_wrong_steps_are_refused_without_effect(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(1), 1, FLAT)
    await ada.push(ones(), step=0)

    with pytest.raises(StepPassedError):
        await ada.push(ones(), step=0)
    with pytest.raises(StepTooEarlyError):
        await ada.push(ones(), step=100)
    with pytest.raises(BadWeightError):
        await ada.push(ones(), step=1, weight=-1.0)

    np.testing.assert_array_equal(await ada.pull("flat"), np.full(SIZE, -1, np.float32))


async def test_another_push_of_a_step_that_is_kept_is_refused(start_servers: Start) -> None:
    ada, _ = await crew(await start_servers(1), 2, FLAT)
    await ada.push(ones(), step=0)

    with pytest.raises(PushRepeatedError):
        await ada.push(ones(), step=0)


async def test_a_failed_job_ends_the_waits_at_once(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada, _ = await crew(cluster, 2, FLAT)
    failure = JobFailedError(role="worker", index=1, reason="its lease expired")

    async def fails() -> None:
        with pytest.raises(JobFailedError) as caught:
            await ada.pull("flat", min_version=1)
        assert (caught.value.role, caught.value.index) == ("worker", 1)

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(fails())
        await cluster.until(lambda facts: facts["waiting_pulls"])
        cluster.routes[0].fail(failure)
        await waiting
    await fails()


async def test_a_table_declared_later_begins_at_the_version_of_the_others(
    start_servers: Start,
) -> None:
    (ada,) = await crew(await start_servers(1), 1, FLAT)
    await ada.push(ones(), step=0)

    await ada.declare(ROWS, mode="sync")

    rows = await ada.pull("rows", [1], min_version=1)
    np.testing.assert_array_equal(rows, np.zeros((1, DIM), np.float32))


async def test_a_large_step_is_applied_off_the_loop_and_in_order(start_servers: Start) -> None:
    big = TableSpec(name="big", kind="dense", size=200_000)
    ada, bob = await crew(await start_servers(1), 2, big)

    for step in range(3):
        for worker in (bob, ada):
            await worker.push({"big": np.full(200_000, step + 1, np.float32)}, step=step)

    values = await ada.pull("big", min_version=3)
    assert values.min() == values.max() == -6.0


async def test_a_step_applied_in_part_ends_all_waits_and_all_else(
    start_servers: Start, tmp_path: Path
) -> None:
    cluster = await start_servers(1)
    (ada,) = await crew(cluster, 1, ROWS)
    table = cluster.routes[0]._store.find("rows")
    assert isinstance(table, SparseTable)
    table.blocks = tuple(b._replace(rows=SparseShard(ROWS, max_rows=1)) for b in table.blocks)
    ids = np.arange(100, dtype=np.int64)

    await ada.push({"rows": (ids, np.ones((100, DIM), np.float32))}, step=0)

    with pytest.raises(TablesDamagedError) as caught:
        await ada.pull("rows", [1], min_version=1)
    assert caught.value.step == 0
    assert "rows" in caught.value.reason
    for later in (
        ada.push({"rows": (ids[:1], np.ones((1, DIM), np.float32))}, step=1),
        ada.pull("rows", [1]),
        ada.ask("save", dirname=str(tmp_path / "c")),
    ):
        with pytest.raises(TablesDamagedError, match="step 0"):
            await later
