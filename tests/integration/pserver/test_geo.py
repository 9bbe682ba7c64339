"""GEO: differences are added, and everybody hears of everybody else's, whatever is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.core.limits import TableLimits
from paramfleet_shared.errors.served import (
    GeoRuleError,
    NonFiniteGradientError,
    OperationModeError,
    UnknownWorkerError,
)
from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import encode_rows
from paramfleet_shared.tables.spec import EntrySpec, OptimizerSpec, TableSpec
from paramfleet_shared.testing.faults import FaultPlan
from paramfleet_shared.values.amounts import Memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

SUM = OptimizerSpec(rule="sum")
ROWS = TableSpec(name="rows", kind="sparse", dim=2, optimizer=SUM)
FLAT = TableSpec(name="flat", kind="dense", size=13, optimizer=SUM)
MORE = TableSpec(name="more", kind="sparse", dim=2, optimizer=SUM)
NOTHING = (np.empty(0, np.int64), np.empty((0, 2), np.float32))


def rows(changes: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([[v, v] for v in changes.values()], np.float32).reshape(-1, 2)
    return np.array(list(changes), np.int64), values


async def crew(cluster: Cluster, num: int, *specs: TableSpec, **terms: Any) -> list[Worker]:
    workers = [cluster.worker(rank) for rank in range(num)]
    for worker in workers:
        await worker.declare(*specs, mode="geo", worker_num=num, **terms)
    return workers


class Replica:
    """A worker's two copies of one row, as in the classic formulas."""

    def __init__(self, value: float, num_workers: int) -> None:
        self.cur = self.old = np.float32(value)
        self.num_workers = num_workers

    def delta(self) -> float:
        delta = np.float32((self.cur - self.old) / np.float32(self.num_workers))
        self.old += delta
        return float(delta)

    def receive(self, served: float) -> None:
        self.cur += np.float32(served) - self.old
        self.old = np.float32(served)


async def test_the_classic_vector_of_two_workers(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(1), 2, ROWS)
    await bob.exchange({"rows": rows({7: 1.0})})
    replica = Replica(1.0, num_workers=2)
    await ada.exchange({"rows": NOTHING})
    replica.cur = np.float32(1.4)
    await bob.exchange({"rows": rows({7: 0.3})})

    delta = replica.delta()
    received = (await ada.exchange({"rows": rows({7: delta})}))["rows"]
    replica.receive(float(received.rows[7][0]))

    assert delta == pytest.approx(0.2)
    np.testing.assert_allclose(received.rows[7], 1.5, rtol=1e-6)
    assert float(replica.cur) == pytest.approx(1.7)
    assert float(replica.old) == pytest.approx(1.5)
    assert replica.delta() == pytest.approx(0.1)


@pytest.mark.parametrize(("damping", "weight"), [(1.0, 1 / 3), (0.5, 3**-0.5)])
async def test_a_row_of_one_worker_gets_all_and_one_of_all_workers_its_share(
    start_servers: Start, damping: float, weight: float
) -> None:
    workers = await crew(await start_servers(2), 3, ROWS, FLAT)
    before = np.zeros(2)
    for step in range(4):
        received = {}
        for rank, worker in enumerate(workers):
            parts = {"rows": rows({rank: 0.5, 9: 0.75}), "flat": np.ones(13, np.float32)}
            received[rank] = (await worker.exchange(parts, step=step, damping=damping))["rows"]
        alone, shared = await workers[0].pull("rows", [0, 9])
        grown, before = shared - before, shared
        np.testing.assert_allclose(alone, 0.5 * (step + 1))
        if step:
            np.testing.assert_allclose(grown, 3 * 0.75 * weight, rtol=1e-6)
        assert {0, 1, 9} <= received[2].rows.keys(), "less was added than it sent: it is told"
        np.testing.assert_array_equal(received[2].rows[9], shared)
        assert 2 not in received[2].rows, "its own row holds what it sent"

    parts = {"rows": NOTHING, "flat": np.zeros(13, np.float32)}
    flat = (await workers[0].exchange(parts))["flat"].dense
    np.testing.assert_allclose(np.asarray(flat), 4 * 3 * weight, rtol=1e-6)


async def test_new_and_known_rows_of_one_exchange_are_told_to_whom_they_concern(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2, ROWS)
    await ada.exchange({"rows": rows({7: 1.0, 3: 1.0})}, step=0, damping=1.0)
    await bob.exchange({"rows": NOTHING}, step=0, damping=1.0)
    await ada.exchange({"rows": rows({3: 1.0})}, step=1, damping=1.0)

    own = await bob.exchange({"rows": rows({5: 1.0, 3: 1.0, 4: 1.0})}, step=1, damping=1.0)
    other = await ada.exchange({"rows": NOTHING}, step=2, damping=1.0)

    assert {number: row.tolist() for number, row in own["rows"].rows.items()} == {
        3: [2.5, 2.5]
    }, "half was added, since both have changed it"
    assert other["rows"].rows.keys() == {3, 4, 5}, "and nothing of 7, which she alone changed"


async def test_a_writer_hears_what_a_table_of_16_bits_made_of_its_row(
    start_servers: Start,
) -> None:
    narrow = replace(ROWS, storage="bfloat16")
    ada, _ = await crew(await start_servers(1), 2, narrow)

    received = (await ada.exchange({"rows": rows({1: 1.0009765625})}))["rows"]

    np.testing.assert_array_equal([received.rows[1]], await ada.pull("rows", [1]))
    assert received.rows[1][0] in {1.0, 1.0078125}


async def test_what_is_divided_ends_the_same_for_all(start_servers: Start) -> None:
    workers = await crew(await start_servers(3), 3, ROWS)
    dice = np.random.default_rng(0)
    held: list[dict[int, np.ndarray]] = [{} for _ in workers]
    for step in range(6):
        for worker, mine in zip(workers, held, strict=True):
            changes = {int(row): 1.0 for row in dice.choice(40, 12, replace=False)}
            for row in changes:
                mine[row] = mine.get(row, np.zeros(2, np.float32)) + np.float32(1.0)
            received = await worker.exchange({"rows": rows(changes)}, step=step, damping=0.5)
            mine.update(received["rows"].rows)

    for worker, mine in zip(workers, held, strict=True):
        received = await worker.exchange({"rows": NOTHING}, step=6, damping=0.5)
        mine.update(received["rows"].rows)
        served = await worker.pull("rows", list(mine))
        np.testing.assert_array_equal(list(mine.values()), served)
    assert len(held[0]) == len(held[1]) == len(held[2]) > 30


async def test_divided_differences_of_a_lost_reply_count_once(start_servers: Start) -> None:
    plan = FaultPlan().drop_reply(of="exchange", nth=2)
    ada, bob = await crew(await start_servers(1, faults=plan), 2, ROWS)
    await ada.exchange({"rows": rows({1: 1.0})}, damping=1.0)

    received = (await bob.exchange({"rows": rows({1: 1.0})}, damping=1.0))["rows"]

    assert len(plan.fired) == 1
    np.testing.assert_array_equal(received.rows[1], [1.5, 1.5])
    np.testing.assert_array_equal(await bob.pull("rows", [1]), [[1.5, 1.5]])


@pytest.mark.parametrize(("damping", "row_bytes"), [(0.0, 44 + 3 * 16), (0.5, 44 + 3 * 26)])
async def test_new_rows_need_memory_for_what_is_kept_of_them_for_each_worker(
    start_servers: Start, damping: float, row_bytes: int
) -> None:
    """A row of two values and its part of the index take 44 bytes."""
    free = 1 << 40
    cluster = await start_servers(
        1, limits=TableLimits(), memory=lambda: Memory(total=1 << 40, free=free)
    )
    ada, bob, eve = await crew(cluster, 3, ROWS)
    for worker in (ada, bob, eve):
        await worker.exchange({"rows": rows({1: 1.0})}, damping=damping)

    free = (1 << 40) // 10 + 100 * row_bytes  # of which a tenth stays free
    many = {"rows": (np.arange(2_000_000), np.ones((2_000_000, 2), np.float32))}
    with pytest.raises(TableMemoryError, match=rf"more rows x {row_bytes} bytes"):
        await ada.exchange(many, step=1, damping=damping)


@pytest.mark.parametrize("damping", [-0.1, 1.5, float("nan"), "half"])
async def test_a_damping_that_is_no_fraction_changes_nothing(
    start_servers: Start, damping: Any
) -> None:
    (ada,) = await crew(await start_servers(1), 1, ROWS)

    with pytest.raises(MalformedMessageError):
        await ada.exchange({"rows": rows({1: 1.0})}, damping=damping)

    np.testing.assert_array_equal(await ada.pull("rows", [1]), [[0, 0]])


@pytest.mark.parametrize("steps", [float(1 << 53), 1e200, float("inf"), "many"])
async def test_a_number_of_steps_whose_square_is_infinite_changes_nothing(
    start_servers: Start, steps: Any
) -> None:
    ada, _ = await crew(await start_servers(1), 2, ROWS)

    with pytest.raises(MalformedMessageError, match="'guarded_steps' must be"):
        await ada.exchange({"rows": rows({1: 1.0})}, guarded_steps=steps, damping=0.5)

    np.testing.assert_array_equal(await ada.pull("rows", [1]), [[0, 0]])


async def test_one_worker_hears_nothing_of_itself(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(2), 1, ROWS, FLAT)

    received = await ada.exchange(
        {"rows": rows({1: 0.5, 2: 1.5}), "flat": np.ones(13, np.float32)}
    )

    assert received["rows"].rows == {}
    np.testing.assert_array_equal(received["flat"].dense, np.ones(13, np.float32))
    np.testing.assert_array_equal(await ada.pull("rows", [1, 2]), [[0.5, 0.5], [1.5, 1.5]])


@pytest.mark.slow
async def test_replicas_agree_after_exchanges_without_training(start_servers: Start) -> None:
    workers = await crew(await start_servers(3), 3, ROWS)
    dice = np.random.default_rng(0)
    touched = [dice.choice(50, 20, replace=False) for _ in workers]
    replicas: list[dict[int, Replica]] = [{} for _ in workers]
    for mine, ids in zip(replicas, touched, strict=True):
        for row in ids:
            mine[int(row)] = Replica(0.0, num_workers=3)
            mine[int(row)].cur += np.float32(dice.standard_normal())
    moved = np.zeros(50)
    for mine in replicas:
        for row, replica in mine.items():
            moved[row] += float(replica.cur)

    for _ in range(60):
        for worker, mine in zip(workers, replicas, strict=True):
            deltas = {row: replica.delta() for row, replica in mine.items()}
            received = (await worker.exchange({"rows": rows(deltas)}))["rows"]
            for row, served in received.rows.items():
                mine.setdefault(row, Replica(0.0, num_workers=3)).receive(float(served[0]))

    served_rows = (await workers[0].pull("rows", list(range(50))))[:, 0]
    np.testing.assert_allclose(served_rows, moved, atol=1e-4)
    for mine in replicas:
        for row, replica in mine.items():
            assert float(replica.cur) == pytest.approx(served_rows[row], abs=1e-4)


async def test_a_lost_reply_is_told_again_and_its_differences_are_added_once(
    start_servers: Start,
) -> None:
    plan = FaultPlan().drop_reply(of="exchange", nth=2)
    ada, bob = await crew(await start_servers(1, faults=plan), 2, ROWS)
    await ada.exchange({"rows": rows({1: 1.0})})

    received = (await bob.exchange({"rows": rows({2: 1.0})}))["rows"]
    after = (await bob.exchange({"rows": NOTHING}))["rows"]

    assert len(plan.fired) == 1
    np.testing.assert_array_equal(received.rows[1], [1, 1])
    assert after.rows == {}
    np.testing.assert_array_equal(await bob.pull("rows", [2]), [[1, 1]])


async def test_a_worker_that_never_acknowledges_hears_the_same_again(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2, ROWS)
    await ada.exchange({"rows": rows({1: 1.0})})

    for _ in range(3):
        bob.acks.clear()
        received = (await bob.exchange({"rows": NOTHING}))["rows"]
        assert list(received.rows) == [1]


async def test_a_bounded_reply_says_that_there_is_more(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(1), 2, ROWS)
    await ada.exchange({"rows": rows(dict.fromkeys(range(10), 1.0))})

    seen: set[int] = set()
    more = []
    for _ in range(3):
        received = (await bob.exchange({"rows": NOTHING}, max_rows=4))["rows"]
        more.append(received.more)
        seen |= set(received.rows)

    assert more == [True, True, False]
    assert seen == set(range(10))


async def test_differences_that_are_not_finite_change_nothing(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(1), 2, ROWS, FLAT)

    with pytest.raises(NonFiniteGradientError):
        await ada.exchange({"rows": rows({1: 1.0}), "flat": np.full(13, np.nan, np.float32)})

    received = await bob.exchange({"rows": NOTHING, "flat": np.zeros(13, np.float32)})
    assert received["rows"].rows == {}
    np.testing.assert_array_equal(received["flat"].dense, np.zeros(13, np.float32))


async def test_an_exchange_commits_its_step_and_one_who_left_is_refused(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2, ROWS, max_staleness=1)
    await ada.exchange({"rows": rows({1: 1.0})}, step=9)
    assert cluster.routes[0].facts()["members"][0] == {"rank": 0, "steps": 10}

    await bob.ask("leave", step=0)

    with pytest.raises(UnknownWorkerError):
        await bob.exchange({"rows": NOTHING})
    received = (await ada.exchange({"rows": NOTHING}))["rows"]
    assert received.rows == {}


async def test_one_who_left_before_a_table_was_touched_leaves_nothing_behind(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2, ROWS)

    await bob.ask("leave", step=0)
    await ada.exchange({"rows": rows({1: 1.0})})

    np.testing.assert_array_equal(await bob.pull("rows", [1]), [[1, 1]])


def narrowed(messages: list[Message], **changes: dict[str, Any]) -> list[Message]:
    """Make deltas of all parts travel as bfloat16; ``changes`` of parts' fields by place.

    A part whose ids are those of another has none of its own.
    """
    found = []
    for message in messages:
        tensors = dict(message.tensors)
        parts = []
        for index, part in enumerate(message.fields["parts"]):
            parts.append({**part, "wire": "bfloat16", **changes.get(f"part_{index}", {})})
            name = f"{index}.deltas"
            tensors[name] = encode_rows(tensors[name], "bfloat16").rows
            if parts[index].get("ids") == "same":
                del tensors[f"{index}.ids"], tensors[f"{index}.offsets"]
        found.append(Message(fields={**message.fields, "parts": parts}, tensors=tensors))
    return found


async def test_ids_that_two_tables_exchange_alike_travel_once(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(2), 2, ROWS, MORE)
    changes = rows(dict.fromkeys(range(200), 1.0))
    both, nothing = {"rows": changes, "more": changes}, {"rows": NOTHING, "more": NOTHING}
    about: dict[str, Any] = {"extra": lambda *_: {"ack": 0, "max_rows": 1000}, "step": 0}
    for wrong in (1, 7):
        messages = ada.messages(both, tensor="deltas", **about)
        with pytest.raises(MalformedMessageError):
            await ada.send("exchange", narrowed(messages, part_1={"ids": "same", "as": wrong}))

    messages = ada.messages(both, tensor="deltas", **about)
    await ada.send("exchange", narrowed(messages, part_1={"ids": "same", "as": 0}))
    asked = narrowed(bob.messages(nothing, tensor="deltas", **about))
    answers = await bob.send("exchange", asked)

    for table in ("rows", "more"):
        np.testing.assert_array_equal(await bob.pull(table, range(200)), np.ones((200, 2)))
    for answer in answers:
        assert [part["ids"] for part in answer.fields["parts"]] == ["delta", "same"]
        assert "1.ids" not in answer.tensors
        assert len(answer.tensors["1.rows"]) == len(answer.tensors["0.rows"]) > 0


async def test_a_push_is_no_operation_of_geo(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(1), 1, ROWS)

    with pytest.raises(OperationModeError):
        await ada.push({"rows": rows({1: 1.0})})


async def test_a_table_with_an_optimizer_is_not_served_in_geo(start_servers: Start) -> None:
    cluster = await start_servers(1)

    with pytest.raises(GeoRuleError) as caught:
        await crew(cluster, 1, ROWS, TableSpec(name="adam", kind="sparse"))

    assert (caught.value.table, caught.value.rule) == ("adam", "sgd")
    assert cluster.routes[0].facts()["tables"] == []


async def test_a_full_table_names_the_ids_that_got_no_row_and_names_them_again(
    start_servers: Start,
) -> None:
    capped = replace(ROWS, entry=EntrySpec(max_rows=8))
    (ada,) = await crew(await start_servers(2), 1, capped)
    changes = rows(dict.fromkeys(range(40), 1.0))
    messages = ada.messages(
        {"rows": changes}, tensor="deltas", extra=lambda *_: {"ack": 0, "max_rows": 99}, step=0
    )

    said = [
        reply.tensors["0.refused"].tolist() for reply in await ada.send("exchange", messages)
    ]
    again = [
        reply.tensors["0.refused"].tolist() for reply in await ada.send("exchange", messages)
    ]

    assert again == said
    refused = [each for server in said for each in server]
    admitted = sorted(set(range(40)) - set(refused))
    assert len(admitted) == 8
    assert (await ada.pull("rows", admitted)).tolist() == [[1.0, 1.0]] * 8


async def test_ids_get_a_row_by_the_steps_that_all_workers_name(start_servers: Start) -> None:
    counted = replace(ROWS, entry=EntrySpec(kind="count_filter", value=4))
    ada, bob = await crew(await start_servers(1), 2, counted)

    async def use(worker: Worker, marks: dict[int, int]) -> Message:
        used = rows(dict.fromkeys(marks, 0.0))
        extra = {"ack": 0, "max_rows": 99, "unique": True}
        (message,) = worker.messages(
            {"rows": used}, tensor="deltas", extra=lambda *_: extra, step=0
        )
        steps = [marks[each] for each in message.tensors["0.ids"].tolist()]
        tensors = {**message.tensors, "0.marks": np.array(steps, np.uint8)}
        (reply,) = await worker.send("exchange", [replace(message, tensors=tensors)])
        return reply

    assert not len((await use(ada, {7: 2, 8: 1})).tensors["0.ids"])
    reply = await use(bob, {7: 2, 8: 2})
    assert reply.tensors["0.ids"].tolist() == [7], "it has no row of it"
    assert (await use(ada, {})).tensors["0.ids"].tolist() == [7]


async def test_marks_are_of_tables_that_have_a_use_for_them(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(1), 1, ROWS)
    extra = {"ack": 0, "max_rows": 99}
    (message,) = ada.messages(
        {"rows": rows({1: 1.0})}, tensor="deltas", extra=lambda *_: extra, step=0
    )
    marked = replace(message, tensors={**message.tensors, "0.marks": np.zeros(1, np.uint8)})
    with pytest.raises(MalformedMessageError, match="marks"):
        await ada.send("exchange", [marked])

    parts = [{"table": "rows", "counted": True}]
    fields = {"rank": 0, "min_version": 0, "parts": parts}
    tensors = {"0.ids": np.empty(0, np.int64), "0.offsets": np.zeros(9, np.int64)}
    with pytest.raises(MalformedMessageError, match="counted"):
        await ada.call(0, "pull", Message(fields=fields, tensors=tensors))


@pytest.mark.slow
async def test_a_large_exchange_leaves_the_loop_and_loses_nothing(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(2), 2, ROWS)
    ids = np.arange(50_000, dtype=np.int64)

    await ada.exchange({"rows": (ids, np.ones((50_000, 2), np.float32))})
    received = (await bob.exchange({"rows": NOTHING}))["rows"]

    assert len(received.rows) == 50_000
    assert all(value[0] == 1.0 for value in received.rows.values())


async def test_guarded_differences_that_grow_are_shortened_and_divided(
    start_servers: Start,
) -> None:
    ada, _ = await crew(await start_servers(1), 2, ROWS, FLAT)
    usual = {"rows": rows({1: 0.5}), "flat": np.full(13, 0.5, np.float32)}
    for step in range(2):
        await ada.exchange(usual, step=step, guarded_steps=1)
    before = await ada.pull("rows", [1]), await ada.pull("flat")

    received = await ada.exchange(
        {"rows": rows({1: 4.0}), "flat": np.full(13, 4.0, np.float32)}, step=2, guarded_steps=1
    )

    # Eight times the usual length: shortened to twice, 1.0. The dense parameter is shared by
    # both workers and divided by 2; the row, which nobody else changed, isn't.
    after = await ada.pull("rows", [1]), await ada.pull("flat")
    np.testing.assert_allclose(after[0] - before[0], 1.0, rtol=1e-6)
    np.testing.assert_allclose(after[1] - before[1], 0.5, rtol=1e-6)
    assert received["rows"].rows.keys() == {1}, "less was added than it sent: it is told"


async def test_differences_of_more_steps_may_be_longer(start_servers: Start) -> None:
    ada, _ = await crew(await start_servers(1), 2, ROWS, FLAT)
    for step in range(3):
        parts = {"rows": rows({1: 0.5}), "flat": np.full(13, 0.5, np.float32)}
        await ada.exchange(parts, step=step, guarded_steps=1)

    await ada.exchange(
        {"rows": rows({1: 4.0}), "flat": np.full(13, 4.0, np.float32)},
        step=11,
        guarded_steps=8,
    )

    np.testing.assert_allclose(await ada.pull("rows", [1]), 5.5, rtol=1e-6)
    np.testing.assert_allclose(await ada.pull("flat"), 5.5, rtol=1e-6)


async def test_one_worker_s_guarded_differences_are_added_whole(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(2), 1, ROWS, FLAT)
    for step, size in enumerate((0.5, 0.5, 0.5, 64.0)):
        parts = {"rows": rows({1: size}), "flat": np.full(13, size, np.float32)}
        await ada.exchange(parts, step=step, damping=1.0, guarded_steps=1)

    np.testing.assert_array_equal(await ada.pull("rows", [1]), [[65.5, 65.5]])
    np.testing.assert_array_equal(await ada.pull("flat"), np.full(13, 65.5, np.float32))
