"""Which rows come with a step of sync, and that a forward takes those of its ids and step."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import paramfleet as fleet
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.modes.outgoing import Outgoing
from paramfleet.training.modes.prefetching.ahead import Wanted
from paramfleet.training.modes.small_tables import MAX_BYTES, SmallTables
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

PLACEMENT = Placement(endpoints=("h:1", "h:2"), num_shards=8)
DENSE = ReadPlan([Read(table="dense", size=4)], PLACEMENT)
DIM = 3
WIDE = TableSpec(name="wide", kind="sparse", dim=DIM, optimizer=OptimizerSpec(rule="sgd"))

Kept = dict[tuple[int, str, int], NDArray[np.int64]]
KEPT: Kept = {}


def table_of(name: str) -> SparseTable:
    return fleet.nn.Embedding(0, DIM, name=name).table


def wanted(table: SparseTable, ids: list[int], *, create: bool = True) -> Wanted:
    parted = partition(np.array(ids, np.int64), PLACEMENT.num_shards)
    return Wanted(table, RowIds(parted.ids, parted.offsets), create)


def rows_of(ids: Any, step: int) -> NDArray[np.float32]:
    return np.repeat(np.asarray(ids, np.float32)[:, None] + 1000 * step, DIM, axis=1)


@pytest.fixture(autouse=True)
def kept() -> Iterator[Kept]:
    """Return the ids that the pservers keep, by server, table and number."""
    yield KEPT
    KEPT.clear()


def answer(small: SmallTables, step: int) -> int:
    """Answer a step's request: the row of id i is i + 1000 * step.

    Returns:
        How many arrays of ids came with it.
    """
    plan, num_sent = small.plan, 0
    answers = []
    for server, message in enumerate(plan.messages(rank=0, min_step=0)):
        tensors: dict[str, NDArray[Any]] = {"0.rows": np.zeros(2, np.float32)}
        for index, about in enumerate(message.fields["parts"][1:], 1):
            assert about["create"] is False, "it changes nothing"
            if about.get("ids") == "pulled":
                ids = KEPT[server, about["of"], about["pulled"]]
            else:
                ids, num_sent = message.tensors[f"{index}.ids"], num_sent + 1
                KEPT[server, about["table"], about["keep"]] = ids
            tensors[f"{index}.rows"] = rows_of(ids, step)
        answers.append(Message(fields={"slowest": step}, tensors=tensors))
    small.arrived(plan.join(answers)[1:], answers, step=step)
    return num_sent


def taken(small: SmallTables, lookups: list[Wanted], step: int) -> bool:
    """Take rows, which must be right; return whether there were any."""
    found = small.take(lookups, step=step)
    if found is None:
        return False
    for rows, lookup in zip(found[0], lookups, strict=True):
        np.testing.assert_array_equal(rows, rows_of(lookup.rows.ids, step))
    return True


def test_ids_of_earlier_forwards_come_with_a_step_in_any_order() -> None:
    small, wide, deep = SmallTables(DENSE, PLACEMENT), table_of("wide"), table_of("deep")
    small.learn([wanted(wide, [5, 1, 9]), wanted(deep, [1, 2])])
    small.learn([wanted(wide, [7, 1, 30])])

    answer(small, 1)

    assert taken(small, [wanted(deep, [2]), wanted(wide, [30, 9, 7, 5, 1])], 1)
    assert taken(small, [wanted(wide, [9, 30])], 1), "as often as they are looked up"
    assert taken(small, [wanted(wide, [9], create=False)], 1)
    assert taken(small, [wanted(wide, [])], 1)


def test_a_batch_is_covered_when_the_next_step_brings_all_its_rows() -> None:
    small, wide, deep = SmallTables(DENSE, PLACEMENT), table_of("wide"), table_of("deep")
    small.learn([wanted(wide, [5, 1, 9])])

    assert small.covers([wanted(wide, [9, 1])])
    assert small.covers([wanted(wide, [])])
    assert not small.covers([wanted(wide, [9, 2])])
    assert not small.covers([wanted(wide, [9]), wanted(deep, [9])])

    answer(small, 1)
    assert taken(small, [wanted(wide, [9, 1])], 1)


def test_rows_are_the_callers_own() -> None:
    small, table = SmallTables(DENSE, PLACEMENT), table_of("wide")
    small.learn([wanted(table, [1, 2])])
    answer(small, 1)

    found = small.take([wanted(table, [1])], step=1)
    assert found is not None
    found[0][0][:] = -1

    assert taken(small, [wanted(table, [1])], 1)


def test_answers_are_kept_without_the_values_of_dense_tables() -> None:
    small, table = SmallTables(DENSE, PLACEMENT), table_of("wide")
    small.learn([wanted(table, [1, 2])])
    answer(small, 1)

    found = small.take([wanted(table, [1])], step=1)

    assert found is not None
    assert [(each.fields["slowest"], dict(each.tensors)) for each in found[1]] == [(1, {})] * 2


@pytest.mark.parametrize("step", [0, 2])
def test_rows_of_another_step_are_never_taken(step: int) -> None:
    small, table = SmallTables(DENSE, PLACEMENT), table_of("wide")
    small.learn([wanted(table, [1, 2])])
    answer(small, 1)

    assert not taken(small, [wanted(table, [1])], step)


def test_one_id_that_is_not_here_has_all_pulled() -> None:
    small, wide, deep = SmallTables(DENSE, PLACEMENT), table_of("wide"), table_of("deep")
    small.learn([wanted(wide, [1, 2])])
    answer(small, 1)

    assert not taken(small, [wanted(wide, [1, 3])], 1)
    assert not taken(small, [wanted(wide, [1]), wanted(deep, [1])], 1)


def test_an_id_that_was_learnt_meanwhile_comes_with_the_next_step() -> None:
    small, table = SmallTables(DENSE, PLACEMENT), table_of("wide")
    small.learn([wanted(table, [1, 2])])
    answer(small, 1)
    small.learn([wanted(table, [1, 3])])

    assert not taken(small, [wanted(table, [3])], 1)

    answer(small, 2)
    assert taken(small, [wanted(table, [3, 2, 1])], 2)


def test_the_request_stays_the_same_while_nothing_is_learnt() -> None:
    small, table = SmallTables(DENSE, PLACEMENT), table_of("wide")
    assert small.plan is DENSE

    small.learn([wanted(table, [1, 2])])
    first = small.plan
    small.learn([wanted(table, [2])])

    assert small.plan is first
    assert [read.table for read in first.reads] == ["dense", "wide"]


def test_ids_travel_once() -> None:
    small, wide, deep = SmallTables(DENSE, PLACEMENT), table_of("wide"), table_of("deep")
    small.learn([wanted(wide, [5, 1, 9]), wanted(deep, [1, 2])])

    assert [answer(small, step) for step in (1, 2, 3)] == [4, 0, 0]

    assert taken(small, [wanted(wide, [9, 1]), wanted(deep, [2])], 3)
    named = small.plan
    answer(small, 4)
    assert small.plan is named

    small.learn([wanted(wide, [7])])
    assert [answer(small, step) for step in (5, 6)] == [4, 0]
    assert taken(small, [wanted(wide, [9, 7])], 6)


def test_ids_travel_again_when_a_pserver_does_not_keep_them(kept: Kept) -> None:
    small, table = SmallTables(DENSE, PLACEMENT), table_of("wide")
    small.learn([wanted(table, [5, 1, 9])])
    answer(small, 1)
    refused = small.plan
    kept.clear()

    small.note_gone()

    answers = [
        Message(
            fields={"slowest": 2},
            tensors={
                "0.rows": np.zeros(2, np.float32),
                "1.rows": rows_of(message.tensors["1.ids"], 2),
            },
        )
        for message in refused.with_ids().messages(rank=0, min_step=2)
    ]
    small.arrived(refused.join(answers)[1:], answers, step=2)
    assert taken(small, [wanted(table, [9, 1])], 2)
    assert [answer(small, step) for step in (3, 4)] == [2, 0]
    assert taken(small, [wanted(table, [9, 1])], 4)


def test_numbers_of_pulls_are_not_those_of_a_former_self(kept: Kept) -> None:
    for incarnation in (1, 2):
        outgoing = Outgoing([WIDE], PLACEMENT, "float32", incarnation=incarnation)
        small, table = (
            SmallTables(DENSE, PLACEMENT, numbers=outgoing.numbers),
            table_of("wide"),
        )
        small.learn([wanted(table, [5, 1, 9])])
        answer(small, 1)

    assert len(kept) == 2 * PLACEMENT.num_servers


def test_numbers_of_pulls_are_not_those_of_forwards(kept: Kept) -> None:
    outgoing = Outgoing([WIDE], PLACEMENT, "float32")
    small, table = SmallTables(DENSE, PLACEMENT, numbers=outgoing.numbers), table_of("wide")
    small.learn([wanted(table, [5, 1, 9])])
    answer(small, 1)

    forward = ReadPlan([outgoing.read("wide", wanted(table, [7]).rows)], PLACEMENT)
    for server, message in enumerate(forward.messages(rank=0, min_step=0)):
        about = message.fields["parts"][0]
        kept[server, "wide", about["keep"]] = message.tensors["0.ids"]

    assert answer(small, 2) == 0
    assert taken(small, [wanted(table, [9, 1])], 2)


def test_what_is_gone_changes_nothing_where_no_rows_come() -> None:
    small = SmallTables(DENSE, PLACEMENT)

    small.note_gone()

    assert small.plan is DENSE


def test_forwards_that_look_up_nothing_of_a_table_count_once() -> None:
    small, wide, deep = SmallTables(DENSE, PLACEMENT), table_of("wide"), table_of("deep")
    for _ in range(1000):
        small.learn([wanted(wide, [1]), wanted(deep, [])])

    answer(small, 1)

    assert taken(small, [wanted(wide, [1]), wanted(deep, [])], 1)


def test_what_is_only_looked_at_is_not_learnt() -> None:
    small = SmallTables(DENSE, PLACEMENT)

    small.learn([wanted(table_of("wide"), [1, 2], create=False)])

    assert small.plan is DENSE


def test_forgotten_rows_are_not_taken_but_come_again() -> None:
    small, table = SmallTables(DENSE, PLACEMENT), table_of("wide")
    small.learn([wanted(table, [1])])
    answer(small, 1)

    small.forget()

    assert not taken(small, [wanted(table, [1])], 1)
    answer(small, 2)
    assert taken(small, [wanted(table, [1])], 2)


def test_tables_that_grow_too_large_come_no_more() -> None:
    small, few, many = SmallTables(DENSE, PLACEMENT), table_of("few"), table_of("many")
    small.learn([wanted(few, [1, 2])])
    answer(small, 1)

    small.learn([wanted(many, list(range(MAX_BYTES // (8 + 4 * DIM))))])
    small.learn([wanted(few, [3])])

    assert small.plan is DENSE
    assert not taken(small, [wanted(few, [1])], 1)
    answer(small, 2)
    assert not taken(small, [wanted(few, [1])], 2)


def test_one_row_may_be_larger_than_all_that_comes() -> None:
    small = SmallTables(DENSE, PLACEMENT)
    table = fleet.nn.Embedding(0, MAX_BYTES, name="huge").table

    small.learn([wanted(table, [1, 2])])

    assert small.plan is DENSE


def test_so_many_tables_come_with_no_step() -> None:
    small = SmallTables(DENSE, PLACEMENT)

    for number in range(300):
        small.learn([wanted(table_of(f"table_{number}"), [1])])

    assert small.plan is DENSE


def test_none_come_where_nothing_may() -> None:
    small = SmallTables(DENSE, PLACEMENT, max_bytes=0)

    small.learn([wanted(table_of("wide"), [1])])

    assert small.plan is DENSE
