"""What narrowing loses: int8 sends it later, 16 bits are right on average."""

from dataclasses import replace

import numpy as np
import pytest

from paramfleet.tables.error_feedback import Residual, RowResiduals, WireFormat
from paramfleet.training.modes.gradients import TableGradient
from paramfleet.training.modes.outgoing import _PUSHES_UNNAMED, Outgoing
from paramfleet.transport.requests import ReadPlan, Write, dense_slice, write_messages
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors.served import KnownIdsGoneError, PulledIdsGoneError
from paramfleet_shared.tables.codecs.catalog import CODECS
from paramfleet_shared.tables.encoding import WireDtype, decode_rows
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

FED_BACK = tuple(name for name, codec in CODECS.items() if codec.rounding == "feedback")
HALVES: tuple[WireDtype, ...] = ("float16", "bfloat16")
TWO = Placement(endpoints=("a:1", "b:1"), num_shards=8)
SGD, ADAM = OptimizerSpec(rule="sgd"), OptimizerSpec(rule="adam")


def rows_of(ids: np.ndarray) -> RowIds:
    parted = partition(ids.astype(np.int64), 8)
    return RowIds(parted.ids, parted.offsets)


def sent_rows(write: Write) -> np.ndarray:
    assert write.encoded is not None
    return np.concatenate([decode_rows(part, write.wire) for part in write.encoded])


@pytest.mark.parametrize("wire", FED_BACK)
def test_gradients_of_a_row_arrive_whole_in_the_end(wire: WireDtype) -> None:
    random = np.random.default_rng(0)
    residuals = RowResiduals("t", 3, wire)
    given, sent = np.zeros((40, 3), np.float64), np.zeros((40, 3), np.float64)

    for _ in range(50):
        ids = np.sort(random.choice(40, 20, replace=False))
        grads = random.standard_normal((20, 3)).astype(np.float32)
        given[ids] += grads
        sent[ids] += decode_rows(residuals.encode(ids, grads), wire)
    for ids, left in residuals.take(max_rows=7):
        assert len(ids) <= 7
        sent[ids] += left

    assert np.abs(given - sent).max() < 1e-5
    assert list(residuals.take(max_rows=7)) == []


def test_what_is_encoded_while_the_rest_is_taken_leaves_a_rest_of_its_own() -> None:
    ids, grads = np.arange(8), np.linspace(0.1, 0.9, 24, dtype=np.float32).reshape(8, 3)
    late = np.array([100])
    residuals = RowResiduals("t", 3, "int8")
    residuals.encode(ids, grads)

    pieces = residuals.take(max_rows=2)
    first = next(pieces)
    sent = decode_rows(residuals.encode(late, grads[:1]), "int8")
    rest = list(pieces)

    assert np.concatenate([found for found, _ in (first, *rest)]).tolist() == ids.tolist()
    ((found, left),) = residuals.take(max_rows=9)
    assert found.tolist() == late.tolist()
    np.testing.assert_allclose(sent + left, grads[:1], atol=1e-7)


def test_what_is_left_of_rows_can_be_looked_up_before() -> None:
    ids, grads = np.array([4, 9]), np.full((2, 3), 1 / 3, np.float32)
    at_once, before = RowResiduals("t", 3, "int8"), RowResiduals("t", 3, "int8")
    stale = before.find(np.array([9, 4]))
    before.forget()

    for found in (stale, before.find(ids), before.find(ids)):
        expected = decode_rows(at_once.encode(ids, grads), "int8")
        assert (decode_rows(before.encode(ids, grads, found), "int8") == expected).all()


def test_of_a_removed_row_nothing_is_left_and_others_take_its_memory() -> None:
    ids, grads = np.array([4, 9, 6]), np.full((3, 3), 1 / 3, np.float32)
    kept, dropped = RowResiduals("t", 3, "int8"), RowResiduals("t", 3, "int8")
    for each, some in ((kept, slice(1, 3)), (dropped, slice(0, 3))):
        each.encode(ids[some], np.array([1.0, 1 / 3, 0.0], np.float32) * grads[some])
    stale = dropped.find(ids)

    dropped.drop(np.array([4, 77]))

    assert dropped.num_rows == 2
    assert np.concatenate([i for i, _ in dropped.take(max_rows=9)]).tolist() == [9, 6]
    for each in (kept, dropped):
        each.encode(ids[1:], np.array([1.0, 1 / 3, 0.0], np.float32) * grads[1:])
    dropped.drop(np.array([9]))
    fresh = RowResiduals("t", 3, "int8").encode(ids, grads)
    got = dropped.encode(np.array([5, 4, 9]), grads, stale)
    np.testing.assert_array_equal(decode_rows(got, "int8"), decode_rows(fresh, "int8"))


@pytest.mark.parametrize("wire", FED_BACK)
def test_updates_far_below_a_rows_scale_add_up_to_what_they_are(wire: WireDtype) -> None:
    grads = np.array([[1.0, 1e-4]], np.float32)  # a step of int8 is 0.008
    residuals = RowResiduals("t", 2, wire)
    ids, sent = np.array([7]), np.zeros(2)

    for _ in range(1000):
        sent += decode_rows(residuals.encode(ids, grads), wire)[0]

    assert sent[1] == pytest.approx(0.1, abs=0.008)
    assert sent[0] == pytest.approx(1000, rel=1e-4)


@pytest.mark.parametrize("wire", FED_BACK)
def test_a_dense_gradient_arrives_whole_in_the_end(wire: WireDtype) -> None:
    random = np.random.default_rng(1)
    parts = [dense_slice(1001, TWO, server) for server in range(2)]
    residual = Residual(WireFormat(wire))
    given, sent = np.zeros(1001), np.zeros(1001)

    for _ in range(30):
        grads = random.standard_normal(1001).astype(np.float32)
        given += grads
        encoded = residual.send(grads, parts)
        sent += np.concatenate([decode_rows(part, wire) for part in encoded])

    left = residual.take()
    assert left is not None
    assert np.abs(given - sent - left).max() < 1e-4
    assert residual.take() is None


def test_what_is_left_can_be_dropped() -> None:
    rows, dense = RowResiduals("t", 3, "int8"), Residual(WireFormat("int8"))
    rows.encode(np.array([1]), np.array([[1, 0.001, 0.5]], np.float32))
    dense.send(np.array([1, 0.001, 0.5, 0], np.float32), [slice(0, 4)])

    rows.forget()
    dense.forget()

    assert list(rows.take(max_rows=9)) == []
    assert dense.take() is None


def specs(rule: OptimizerSpec) -> list[TableSpec]:
    return [
        TableSpec(name="deep", kind="sparse", dim=4, optimizer=rule),
        TableSpec(name="wide", kind="sparse", dim=1, optimizer=rule),
        TableSpec(name="flat", kind="dense", size=600, optimizer=rule),
    ]


def gradients(ids: np.ndarray) -> list[TableGradient]:
    random = np.random.default_rng(2)
    rows = rows_of(ids)

    def values(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    return [
        TableGradient(name="deep", rows=rows, grads=values(len(ids), 4), lr=0.1),
        TableGradient(name="wide", rows=rows, grads=values(len(ids), 1), lr=0.1),
        TableGradient(name="flat", rows=None, grads=values(600), lr=0.1),
    ]


def test_float32_is_written_as_it_is() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "float32")
    for gradient in gradients(np.arange(30)):
        write = outgoing.write(gradient)

        assert write.encoded is None
        assert write.values is gradient.grads
        assert (write.lr, write.wire) == (0.1, "float32")
    assert list(outgoing.take_rest()) == []


def test_float32_names_its_pull_and_keeps_the_order_that_was_asked_for() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "float32", incarnation=3)
    rows = rows_of(np.random.default_rng(5).permutation(50))
    deep, wide, flat = gradients(np.arange(50))

    read = outgoing.read("deep", rows)
    write = outgoing.write(replace(deep, rows=rows))
    again = outgoing.write(replace(deep, rows=rows))
    others = [outgoing.write(each) for each in (wide, flat)]

    assert (read.rows, read.order, read.named, read.as_pulled) == (rows, None, None, None)
    assert write.rows is rows
    assert write.pulled == read.keep == 3 << 32
    assert [each.pulled for each in (again, *others)] == [None] * 3, "each pull is named once"


def test_float32_carries_its_ids_once_a_pserver_has_forgotten_a_pull() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "float32")
    deep = gradients(np.arange(30))[0]
    assert deep.rows is not None
    outgoing.read("deep", deep.rows)

    outgoing.note_gone(PulledIdsGoneError(table="deep", rank=0, pull=0))

    assert outgoing.write(deep).pulled is None


def test_narrow_rows_travel_as_bfloat16_where_int8_was_asked_for() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")

    wires = [outgoing.write(g).wire for g in gradients(np.arange(30))]

    assert wires == ["int8", "bfloat16", "int8"]


def test_what_is_left_at_the_end_makes_the_sums_whole() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    deep, wide, flat = gradients(np.arange(30) * 17)

    first = outgoing.write(deep)
    outgoing.write(wide)
    dense = outgoing.write(flat)
    rest = {gradient.name: gradient for gradient in outgoing.take_rest()}

    assert first.rows is not None
    assert deep.rows is not None
    sums = {i: row.copy() for i, row in zip(first.rows.ids, sent_rows(first), strict=True)}
    late = rest["deep"]
    assert late.rows is not None
    assert late.rows.offsets[-1] == len(late.rows.ids)
    for each, row in zip(late.rows.ids, late.grads, strict=True):
        sums[each] += row
    for each, row in zip(deep.rows.ids, deep.grads, strict=True):
        assert sums[each] == pytest.approx(row, abs=1e-6)
    assert sent_rows(dense) + rest["flat"].grads == pytest.approx(flat.grads, abs=1e-6)
    assert late.lr == 0.1


def test_optimizers_with_state_get_no_late_gradient() -> None:
    outgoing = Outgoing(specs(ADAM), TWO, "int8")
    for gradient in gradients(np.arange(30)):
        outgoing.write(gradient)

    assert list(outgoing.take_rest()) == []


def test_before_the_first_push_and_after_a_reload_nothing_is_left() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    assert list(outgoing.take_rest()) == []
    for gradient in gradients(np.arange(30)):
        outgoing.write(gradient)

    outgoing.forget()

    assert not any(gradient.grads.any() for gradient in outgoing.take_rest())


def test_a_push_of_rows_that_were_pulled_names_the_pull() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8", incarnation=3)
    rows = rows_of(np.random.default_rng(4).permutation(50))

    reads = [outgoing.read("deep", rows), outgoing.read("wide", rows)]
    gradient = TableGradient(name="deep", rows=rows, grads=np.ones((50, 4), np.float32), lr=1.0)
    write = outgoing.write(gradient)

    assert [read.wire for read in reads] == ["int8", "bfloat16"]
    assert reads[0].keep == write.pulled == 3 << 32
    assert reads[1].keep == (3 << 32) + 1
    assert reads[0].rows is not None
    assert write.rows is reads[0].rows
    (message, _) = write_messages([write], TWO, {}, values_name="grads")
    assert set(message.tensors) == {"0.grads", "0.scales"}
    assert message.fields["parts"][0]["ids"] == "pulled"
    others = TableGradient(
        name="deep", rows=rows_of(np.arange(9)), grads=np.ones((9, 4), np.float32), lr=1.0
    )
    assert outgoing.write(others).pulled is None


def test_rows_looked_up_in_their_order_are_pushed_as_they_are() -> None:
    parted = partition(np.random.default_rng(5).permutation(50), 8, by_id=True)
    rows = RowIds(parted.ids, parted.offsets)
    outgoing = Outgoing(specs(SGD), TWO, "bfloat16")

    read = outgoing.read("deep", rows)
    grads = np.ones((50, 4), np.float32)
    write = outgoing.write(TableGradient(name="deep", rows=rows, grads=grads, lr=1.0))

    assert read.order is None
    assert read.rows is rows
    assert write.rows is rows
    assert write.values is grads


def test_a_push_names_the_pull_that_asked_ahead_for_the_same_ids_and_each_pull_once() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    ids = np.random.default_rng(6).permutation(50)
    ahead, looked_up = rows_of(ids), rows_of(ids)
    reads = [outgoing.read("deep", ahead), outgoing.read("deep", rows_of(ids))]
    grads = np.random.default_rng(7).standard_normal((50, 4)).astype(np.float32)
    gradient = TableGradient(name="deep", rows=looked_up, grads=grads, lr=1.0)

    writes = [outgoing.write(gradient) for _ in range(3)]

    assert [write.pulled for write in writes] == [reads[0].keep, reads[1].keep, None]
    for write in writes:
        assert write.rows is not None
        assert write.rows.ids.tolist() == writes[0].rows.ids.tolist()  # type: ignore[union-attr]
    assert writes[0].rows is not None
    places = {each: place for place, each in enumerate(looked_up.ids.tolist())}
    order = [places[each] for each in writes[0].rows.ids.tolist()]
    np.testing.assert_allclose(sent_rows(writes[0]), grads[order], atol=0.05)


def test_only_the_latest_pulls_are_named() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    batches = [rows_of(np.arange(9) + 100 * number) for number in range(40)]
    for rows in batches:
        outgoing.read("deep", rows)

    def pulled(rows: RowIds) -> int | None:
        grads = np.ones((9, 4), np.float32)
        gradient = TableGradient(name="deep", rows=rows, grads=grads, lr=1.0)
        return outgoing.write(gradient).pulled

    assert pulled(batches[0]) is None
    assert pulled(batches[-1]) == 39


def test_pushes_carry_their_ids_for_a_while_after_some_were_forgotten() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    rows, grads = rows_of(np.arange(50)), np.ones((50, 4), np.float32)
    gradient = TableGradient(name="deep", rows=rows, grads=grads, lr=1.0)

    def named() -> bool:
        outgoing.read("deep", rows)
        return outgoing.write(gradient).pulled is not None

    assert named()
    outgoing.stop_naming("wide")
    assert named()
    outgoing.stop_naming("deep")
    assert [named() for _ in range(_PUSHES_UNNAMED + 1)] == [False] * _PUSHES_UNNAMED + [True]


def test_a_pull_that_was_never_pushed_ages_by_those_that_were() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    batches = [rows_of(np.arange(9) + 100 * number) for number in range(40)]

    def pulled(rows: RowIds) -> int | None:
        grads = np.ones((9, 4), np.float32)
        gradient = TableGradient(name="deep", rows=rows, grads=grads, lr=1.0)
        return outgoing.write(gradient).pulled

    for rows in batches:
        outgoing.read("deep", rows)
        if rows is not batches[0]:
            assert pulled(rows) is not None

    assert pulled(batches[0]) is None


def test_a_pull_of_the_rows_of_another_table_names_its_latest_pull() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    rows, same = rows_of(np.arange(50)), rows_of(np.arange(50))

    reads = [outgoing.read("wide", rows), outgoing.read("deep", same)]
    other = outgoing.read("deep", rows_of(np.arange(40)))
    plan = ReadPlan(reads, TWO)
    (message, _), (whole, _) = (
        each.messages(rank=0, min_step=0) for each in (plan, plan.with_ids())
    )

    assert reads[0].as_pulled is None
    assert reads[1].as_pulled == ("wide", reads[0].keep)
    assert other.as_pulled is None
    assert {name[0] for name in message.tensors} == {"0"}
    named = {"ids": "pulled", "of": "wide", "pulled": reads[0].keep}
    assert named.items() <= message.fields["parts"][1].items()
    assert np.array_equal(whole.tensors["1.ids"], message.tensors["0.ids"])


def test_no_pull_names_what_the_pservers_have_forgotten() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    rows = rows_of(np.arange(50))
    outgoing.stop_naming("wide")

    outgoing.read("wide", rows)

    assert outgoing.read("deep", rows).as_pulled is None


def test_a_write_takes_what_its_pull_has_looked_up() -> None:
    spec = TableSpec(name="t", kind="sparse", dim=4, num_shards=8, optimizer=SGD)
    plain, early = (Outgoing([spec], TWO, "int8") for _ in range(2))
    random = np.random.default_rng(3)

    for _ in range(3):
        rows = rows_of(random.choice(100, 30, replace=False))
        grads = random.standard_normal((30, 4)).astype(np.float32)
        gradient = TableGradient(name="t", rows=rows, grads=grads, lr=0.1)
        plain.read("t", rows)
        early.find_rest(early.read("t", rows))
        expected = sent_rows(plain.write(gradient))
        assert (sent_rows(early.write(gradient)) == expected).all()


def test_a_pull_that_is_never_pushed_leaves_no_room_for_a_rest() -> None:
    residuals = RowResiduals("t", 4, "int8")
    ids, grads = np.arange(30), np.full((30, 4), 1 / 3, np.float32)

    found = residuals.find(ids)
    assert residuals.num_rows == 0

    residuals.encode(ids[:20], grads[:20], residuals.find(ids[:20]))
    assert residuals.num_rows == 20
    residuals.encode(ids, grads, found)
    assert residuals.num_rows == 30
    later = residuals.find(ids)
    assert (later.slots == np.arange(30)).all()


@pytest.mark.parametrize("wire", HALVES)
def test_16_bits_leave_nothing_and_are_right_on_average(wire: WireDtype) -> None:
    outgoing = Outgoing(specs(SGD), TWO, wire)
    given = gradients(np.arange(30))
    sums = {gradient.name: np.zeros(gradient.grads.shape) for gradient in given}

    for _ in range(400):
        for gradient in given:
            sums[gradient.name] += sent_rows(outgoing.write(gradient))

    for gradient in given:
        # 2^-8 of a value is bfloat16's step there; five deviations of a mean of 400
        bound = 5 * 0.5 * 2.0**-7 * np.abs(gradient.grads) / 400**0.5
        mean = sums[gradient.name] / 400
        assert (np.abs(mean - gradient.grads) <= bound + 1e-7).all()
    assert list(outgoing.take_rest()) == []


def test_workers_and_their_later_selves_round_otherwise_and_a_run_again_alike() -> None:
    (deep, *_) = gradients(np.arange(30))
    sent = [
        sent_rows(Outgoing(specs(SGD), TWO, "bfloat16", **who).write(deep)).tolist()
        for who in ({}, {"rank": 1}, {"incarnation": 1}, {"rank": 0, "incarnation": 0})
    ]

    assert sent[0] == sent[3]
    assert sent[0] != sent[1] != sent[2] != sent[0]


def test_ids_that_were_answered_travel_as_numbers_until_a_book_is_lost() -> None:
    outgoing = Outgoing(specs(SGD), TWO, "int8")
    rows = rows_of(np.random.default_rng(8).permutation(50))

    def ask() -> tuple[ReadPlan, list[dict[str, object]], int]:
        plan = ReadPlan([outgoing.read("deep", rows)], TWO)
        messages = plan.messages(rank=0, min_step=0)
        num_ids = sum(len(message.tensors["0.ids"]) for message in messages)
        return plan, [message.fields["parts"][0] for message in messages], num_ids

    plan, parts, num_ids = ask()
    assert [part["base"] for part in parts] == [0, 0]
    assert num_ids > 0
    outgoing.confirm(plan)

    plan, parts, num_ids = ask()
    assert all(part["ids"] == "known" and "base" not in part for part in parts)
    assert num_ids == 0
    grads = np.random.default_rng(9).standard_normal((50, 4)).astype(np.float32)
    gradient = TableGradient(name="deep", rows=rows, grads=grads, lr=1.0)
    write = outgoing.write(gradient)
    assert write.rows is not None
    places = {each: place for place, each in enumerate(rows.ids.tolist())}
    order = [places[each] for each in write.rows.ids.tolist()]
    np.testing.assert_allclose(sent_rows(write), grads[order], atol=0.05)

    outgoing.note_gone(KnownIdsGoneError(table="deep", rank=0, book=0), plan)
    _, parts, _ = ask()
    assert [(part["book"], part["base"]) for part in parts] == [(1, 0), (1, 0)]


def test_what_is_rounded_by_chance_doesnt_depend_on_which_ids_are_known() -> None:
    known, unknown = (Outgoing(specs(SGD), TWO, "int8") for _ in range(2))
    few = ReadPlan([known.read("wide", rows_of(np.arange(0, 50, 3)))], TWO)
    known.confirm(few)
    rows = rows_of(np.random.default_rng(8).permutation(50))
    grads = np.random.default_rng(9).standard_normal((50, 1)).astype(np.float32)
    gradient = TableGradient(name="wide", rows=rows, grads=grads, lr=1.0)

    writes = []
    for outgoing in (known, unknown):
        outgoing.read("wide", rows)
        writes.append(outgoing.write(gradient))

    sent = []
    for write in writes:
        assert write.rows is not None
        ids = write.rows.ids.tolist()
        sent.append(dict(zip(ids, sent_rows(write)[:, 0].tolist(), strict=True)))
    assert list(sent[0]) != list(sent[1])
    assert sent[0] == sent[1]
