"""Numbers and ids in fewer bytes: what the servers take, and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.api.reading import INLINE_PACKED_BYTES
from paramfleet_pserver.requests.tensors import MAX_PACKED_IDS
from paramfleet_shared.errors.served import (
    AnswerTooLargeError,
    FencedError,
    NonFiniteGradientError,
    PulledIdsGoneError,
    UnknownTableError,
    UnknownWorkerError,
)
from paramfleet_shared.net.wire.limits import DEFAULT_LIMITS
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import (
    Encoded,
    WireDtype,
    decode_rows,
    encode_rows,
    pack_ids,
    sort_within_shards,
    unpack_ids,
)
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from numpy.typing import NDArray
    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

SGD = OptimizerSpec(rule="sgd")
NORMAL = InitializerSpec(kind="normal")
ROWS = TableSpec(name="rows", kind="sparse", dim=5, optimizer=SGD, initializer=NORMAL)
FLAT = TableSpec(name="flat", kind="dense", size=700, optimizer=SGD, initializer=NORMAL)
SUMS = TableSpec(
    name="sums", kind="sparse", dim=5, optimizer=OptimizerSpec(rule="sum"), initializer=NORMAL
)
IDS = np.random.default_rng(1).permutation(5000).astype(np.int64) * 11 - 9000
LOSSY: tuple[WireDtype, ...] = ("float16", "bfloat16", "int8", "float8_e4m3")


def reading(worker: Worker, wire: str, ids: NDArray[np.int64]) -> Message:
    """Return a pull of both tables from server 0."""
    _, tensors = worker.part_of(0, 0, "rows", ids)
    parts = [{"table": "rows", "create": True, "wire": wire}, {"table": "flat", "wire": wire}]
    fields = {"rank": 0, "incarnation": worker.incarnation, "min_version": 0, "parts": parts}
    return Message(fields=fields, tensors=tensors)


def numbers(message: Message, index: int, wire: WireDtype, *, name: str = "rows") -> Any:
    scales = message.tensors.get(f"{index}.scales")
    return decode_rows(Encoded(message.tensors[f"{index}.{name}"], scales), wire)


def smaller(message: Message, wire: WireDtype, *, name: str) -> Message:
    """Return the message with its numbers encoded and its ids packed."""
    tensors: dict[str, Any] = {}
    parts = []
    for index, part in enumerate(message.fields["parts"]):
        values = message.tensors[f"{index}.{name}"]
        about = {**part, "wire": wire}
        ids = message.tensors.get(f"{index}.ids")
        if ids is not None:
            offsets = message.tensors[f"{index}.offsets"]
            order = sort_within_shards(ids, offsets)
            packed = pack_ids(ids[order], offsets)
            assert packed is not None, "neighbours"
            tensors |= {f"{index}.ids": packed, f"{index}.offsets": offsets}
            about |= {"ids": "delta", "unique": True}
            values = values[order]
        encoded = encode_rows(np.ascontiguousarray(values), wire)
        tensors[f"{index}.{name}"] = encoded.rows
        if encoded.scales is not None:
            tensors[f"{index}.scales"] = encoded.scales
        parts.append(about)
    return Message(fields={**message.fields, "parts": parts}, tensors=tensors)


@pytest.mark.parametrize("wire", LOSSY)
async def test_a_pull_is_answered_as_it_asks(start_servers: Start, wire: WireDtype) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS, FLAT)

    exact = await worker.call(0, "pull", reading(worker, "float32", IDS))
    answer = await worker.call(0, "pull", reading(worker, wire, IDS))

    for index in (0, 1):
        expected = encode_rows(exact.tensors[f"{index}.rows"], wire)
        assert np.array_equal(answer.tensors[f"{index}.rows"], expected.rows)
        if expected.scales is not None:
            assert np.array_equal(answer.tensors[f"{index}.scales"], expected.scales)


@pytest.mark.parametrize("wire", LOSSY)
async def test_a_push_is_taken_as_it_travelled(start_servers: Start, wire: WireDtype) -> None:
    worker = (await start_servers(2)).worker()
    await worker.declare(ROWS, FLAT)
    before = await worker.pull("rows", IDS.tolist(), create=True), await worker.pull("flat")
    random = np.random.default_rng(2)
    grads = random.standard_normal((len(IDS), 5)).astype(np.float32)
    flat = random.standard_normal(700).astype(np.float32)

    messages = worker.push_messages({"rows": (IDS, grads), "flat": flat}, step=0, lr=0.5)
    messages = [smaller(message, wire, name="grads") for message in messages]
    await worker.send("push", messages)

    took = decode_rows(encode_rows(grads, wire), wire)
    after = await worker.pull("rows", IDS.tolist())
    assert np.array_equal(after, before[0] - np.float32(0.5) * took)
    sent = np.concatenate([numbers(m, 1, wire, name="grads") for m in messages])
    assert np.array_equal(await worker.pull("flat"), before[1] - np.float32(0.5) * sent)


@pytest.mark.parametrize("wire", LOSSY)
async def test_an_exchange_adds_and_answers_as_it_asks(
    start_servers: Start, wire: WireDtype
) -> None:
    cluster = await start_servers(1)
    writer, reader = cluster.worker(0), cluster.worker(1)
    for worker in (writer, reader):
        await worker.declare(SUMS, mode="geo", worker_num=2)
    extra: Any = lambda *_: {"ack": 0, "max_rows": 1 << 20}  # noqa: E731 - one line
    deltas = np.random.default_rng(3).standard_normal((len(IDS), 5)).astype(np.float32)
    first = await writer.pull("sums", IDS.tolist())
    sending = writer.messages({"sums": (IDS, deltas)}, tensor="deltas", extra=extra, step=0)
    await writer.send("exchange", [smaller(m, wire, name="deltas") for m in sending])

    nothing = {"sums": (IDS[:0], deltas[:0])}
    (asking,) = reader.messages(nothing, tensor="deltas", extra=extra, step=0)
    asking.fields["parts"][0]["wire"] = wire
    received = await reader.call(
        0,
        "exchange",
        Message(
            fields=asking.fields,
            tensors={
                **asking.tensors,
                "0.deltas": encode_rows(deltas[:0], wire).rows,
                "0.scales": np.empty(0, np.uint8),
            },
        ),
    )

    values = first + decode_rows(encode_rows(deltas, wire), wire)
    served = dict(zip(IDS.tolist(), decode_rows(encode_rows(values, wire), wire), strict=True))
    assert received.fields["parts"][0]["ids"] == "delta"
    assert received.tensors["0.ids"].nbytes < 2 * len(IDS)
    ids = unpack_ids(received.tensors["0.ids"], received.tensors["0.offsets"])
    assert ids is not None
    assert sorted(ids.tolist()) == sorted(IDS.tolist())
    for each, row in zip(ids.tolist(), numbers(received, 0, wire), strict=True):
        assert np.array_equal(row, served[each])


async def test_a_promise_of_different_ids_that_is_broken_harms_no_other_row(
    start_servers: Start,
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    ids = np.array([1, 2, 2, 3], np.int64)
    before = await worker.pull("rows", [1, 2, 3, 4], create=True)
    (message,) = worker.push_messages({"rows": (ids, np.ones((4, 5), np.float32))}, step=0)

    message.fields["parts"][0]["unique"] = True
    await worker.send("push", [message])

    after = await worker.pull("rows", [1, 2, 3, 4])
    assert np.array_equal(after[[0, 2]], before[[0, 2]] - np.float32(1))
    assert np.array_equal(after[3], before[3])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"wire": "float8"}, "field 'wire' must be one of float32, float16, bfloat16, int8"),
        ({"wire": 8}, "field 'wire' must be one of"),
        ({"ids": "zip"}, "field 'ids' must be one of plain, delta"),
        ({"unique": 1}, "field 'unique' must be true or false"),
    ],
)
async def test_a_part_with_a_wrong_field_names_it(
    start_servers: Start, change: dict[str, Any], error: str
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    grads = np.ones((len(IDS), 5), np.float32)
    (message,) = worker.push_messages({"rows": (IDS, grads)}, step=0)
    wrong = smaller(message, "int8", name="grads")
    wrong.fields["parts"][0].update(change)

    with pytest.raises(MalformedMessageError, match=error):
        await worker.call(0, "push", wrong)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"0.scales": None}, MalformedMessageError),
        ({"0.scales": np.zeros(3, np.uint16)}, RowShapeError),
        ({"0.grads": np.zeros((5000, 5), np.float32)}, RowShapeError),
        ({"0.ids": np.zeros(16, np.uint8)}, MalformedMessageError),
        ({"0.ids": np.zeros(5000, np.int64)}, RowShapeError),
        ({"0.offsets": np.array([0] * 8 + [1 << 60], np.int64)}, MalformedMessageError),
        ({"0.offsets": np.array([0] * 7 + [9, 8], np.int64)}, MalformedMessageError),
    ],
)
async def test_tensors_that_do_not_fit_a_part_are_refused_and_change_nothing(
    start_servers: Start, change: dict[str, Any], error: type[Exception]
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    grads = np.ones((len(IDS), 5), np.float32)
    (message,) = worker.push_messages({"rows": (IDS, grads)}, step=0)
    good = smaller(message, "int8", name="grads")
    tensors = {k: v for k, v in {**good.tensors, **change}.items() if v is not None}

    with pytest.raises(error):
        await worker.call(0, "push", Message(fields=good.fields, tensors=tensors))

    (facts,) = (await worker.ask("status"))[0].fields["tables"]
    assert (facts["rows"], facts["pushes"]) == (0, 0)


@pytest.mark.parametrize("wire", LOSSY)
async def test_a_number_that_is_none_is_refused_in_every_encoding(
    start_servers: Start, wire: WireDtype
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    grads = np.ones((len(IDS), 5), np.float32)
    grads[7, 3] = np.nan
    (message,) = worker.push_messages({"rows": (IDS, grads)}, step=0)

    with pytest.raises(NonFiniteGradientError) as caught:
        await worker.call(0, "push", smaller(message, wire, name="grads"))
    assert caught.value.facts["count"] == 1


async def test_a_push_may_name_the_pull_that_had_its_ids(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    asking = reading(worker, "bfloat16", IDS)
    del asking.fields["parts"][1]
    asking.fields["parts"][0]["keep"] = 77
    await worker.call(0, "pull", asking)
    before = await worker.pull("rows", IDS.tolist())
    order, _ = worker.part_of(0, 0, "rows", IDS)
    grads = np.random.default_rng(2).standard_normal((len(IDS), 5)).astype(np.float32)
    part = {"table": "rows", "lr": 1.0, "ids": "pulled", "pulled": 77}
    head = {"rank": 0, "incarnation": 1, "sequence": 1, "step": 0, "weight": 1.0}

    def push(**changes: Any) -> Message:
        parts = [{**part, **changes}]
        return Message(fields={**head, "parts": parts}, tensors={"0.grads": grads[order]})

    with pytest.raises(PulledIdsGoneError) as caught:
        await worker.call(0, "push", push(pulled=78))
    assert caught.value.facts == {"table": "rows", "rank": 0, "pull": 78}
    with pytest.raises(MalformedMessageError, match="'pulled' must be a whole number"):
        await worker.call(0, "push", push(pulled="77"))
    await worker.call(0, "push", push())
    again = await worker.call(0, "push", push())

    assert again.fields["duplicate"] is True
    assert np.array_equal(await worker.pull("rows", IDS.tolist()), before - grads)


async def test_the_ids_of_a_worker_that_left_are_not_kept(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    asking = reading(worker, "bfloat16", IDS)
    asking.fields["parts"][0]["keep"] = 77
    del asking.fields["parts"][1]
    await worker.call(0, "pull", asking)

    await worker.ask("leave", step=0)

    part = {"table": "rows", "lr": 1.0, "ids": "pulled", "pulled": 77}
    head = {"rank": 0, "incarnation": 1, "sequence": 1, "step": 0, "weight": 1.0}
    grads = {"0.grads": np.zeros((len(IDS), 5), np.float32)}
    with pytest.raises(PulledIdsGoneError):
        await worker.call(0, "push", Message(fields={**head, "parts": [part]}, tensors=grads))
    await worker.call(0, "pull", asking)  # it comes late
    with pytest.raises(PulledIdsGoneError):
        await worker.call(0, "push", Message(fields={**head, "parts": [part]}, tensors=grads))


async def test_ids_are_kept_for_the_latest_self_of_a_worker_alone(start_servers: Start) -> None:
    cluster = await start_servers(1)
    former, latest = cluster.worker(), cluster.worker(incarnation=2)
    await former.declare(ROWS)
    await latest.declare(ROWS)
    before = await latest.pull("rows", IDS.tolist(), create=True)

    def asking(worker: Worker, ids: NDArray[np.int64]) -> Message:
        message = reading(worker, "float32", ids)
        del message.fields["parts"][1]
        message.fields["parts"][0]["keep"] = 5
        return message

    await latest.call(0, "pull", asking(latest, IDS[:10]))
    with pytest.raises(FencedError):
        await former.call(0, "pull", asking(former, IDS[10:20]))
    nameless = asking(former, IDS[10:20])
    fields = {name: each for name, each in nameless.fields.items() if name != "incarnation"}
    with pytest.raises(MalformedMessageError, match="'incarnation'"):
        await former.call(0, "pull", Message(fields=fields, tensors=nameless.tensors))
    part = {"table": "rows", "lr": 1.0, "ids": "pulled", "pulled": 5}
    head = {
        "rank": 0,
        "incarnation": 2,
        "sequence": 1,
        "step": 0,
        "weight": 1.0,
        "parts": [part],
    }
    grads = {"0.grads": np.ones((10, 5), np.float32)}
    await latest.call(0, "push", Message(fields=head, tensors=grads))

    changed = before != await latest.pull("rows", IDS.tolist())
    assert changed[:10].all()
    assert not changed[10:].any()


async def test_a_worker_that_cannot_be_is_kept_nothing_for(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS, FLAT)
    asking = reading(worker, "bfloat16", IDS)
    asking.fields["parts"][0]["keep"] = 77
    stranger = Message(fields={**asking.fields, "rank": 1}, tensors=asking.tensors)

    with pytest.raises(UnknownWorkerError):
        await worker.call(0, "pull", stranger)


async def test_many_packed_ids_are_read_as_few_are(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    ids = np.random.default_rng(4).permutation(60_000).astype(np.int64) << 20
    before = await worker.pull("rows", ids.tolist(), create=True)
    grads = np.random.default_rng(5).standard_normal((len(ids), 5)).astype(np.float32)
    (message,) = worker.push_messages({"rows": (ids, grads)}, step=0)
    packed = smaller(message, "bfloat16", name="grads")
    assert packed.tensors["0.ids"].nbytes > INLINE_PACKED_BYTES

    await worker.send("push", [packed])

    took = decode_rows(encode_rows(grads, "bfloat16"), "bfloat16")
    assert np.array_equal(await worker.pull("rows", ids.tolist()), before - took)


WIDE = TableSpec(name="wide", kind="sparse", dim=4096, optimizer=SGD, initializer=NORMAL)
THIN = TableSpec(name="thin", kind="sparse", dim=1, optimizer=SGD, initializer=NORMAL)


async def test_more_than_an_answer_holds_is_refused_by_name(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(WIDE)
    num = DEFAULT_LIMITS.max_body_bytes // (4096 * 4)
    _, first = worker.part_of(0, 0, "wide", np.arange(num))
    _, second = worker.part_of(0, 1, "wide", np.arange(1))
    parts = [{"table": "wide", "create": True}] * 2
    fields = {"rank": 0, "min_version": 0, "parts": parts}

    with pytest.raises(AnswerTooLargeError) as caught:
        await worker.call(0, "pull", Message(fields=fields, tensors=first | second))

    limit = DEFAULT_LIMITS.max_body_bytes
    facts = {"table": "wide", "rows": 1, "num_bytes": limit + 4096 * 4, "limit_bytes": limit}
    assert caught.value.facts == facts
    (facts,) = (await worker.ask("status"))[0].fields["tables"]
    assert (facts["rows"], facts["pulls"]) == (0, 0)


async def test_packed_ids_are_bounded_over_all_parts(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(THIN)
    num = MAX_PACKED_IDS // 2 + 1
    _, tensors = worker.part_of(0, 0, "thin", np.arange(0))
    bounds = tensors["0.offsets"].copy()
    bounds[1:] = num
    packed = np.zeros(8 + -(-(num - 1) // 32) + 8, np.uint8)  # id 0 of shard 0, over and over
    tensors = {f"{i}.{n}": t for i in (0, 1) for n, t in (("ids", packed), ("offsets", bounds))}
    about = {"table": "thin", "create": False, "ids": "delta", "wire": "bfloat16"}
    fields = {"rank": 0, "min_version": 0, "parts": [about, about]}

    with pytest.raises(MalformedMessageError, match=r"bounds of tensor '1.ids'.*at most"):
        await worker.call(0, "pull", Message(fields=fields, tensors=tensors))


async def test_an_int8_row_that_is_not_a_number_is_refused(start_servers: Start) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    grads = np.ones((len(IDS), 5), np.float32)
    (message,) = worker.push_messages({"rows": (IDS, grads)}, step=0)
    push = smaller(message, "int8", name="grads")
    scales = push.tensors["0.scales"]
    scales[7] = 255

    with pytest.raises(NonFiniteGradientError) as caught:
        await worker.call(0, "push", push)
    assert caught.value.facts["count"] == 1


async def test_a_pull_may_name_another_tables_pull_of_the_same_ids(
    start_servers: Start,
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS, THIN, FLAT)
    expected = await worker.pull("thin", IDS.tolist())
    order, tensors = worker.part_of(0, 0, "rows", IDS)
    named = {"table": "thin", "create": True, "ids": "pulled", "of": "rows", "pulled": 7}

    async def pull(*parts: dict[str, Any], **given: Any) -> NDArray[np.float32]:
        fields = {"rank": 0, "incarnation": 1, "min_version": 0, "parts": list(parts)}
        answer = await worker.call(0, "pull", Message(fields=fields, tensors=given))
        rows: NDArray[np.float32] = answer.tensors[f"{len(parts) - 1}.rows"]
        return rows

    with pytest.raises(PulledIdsGoneError):
        await pull(named)
    first = {"table": "rows", "create": True, "keep": 7}
    together = await pull(first, named, **tensors)
    later = await pull(named)
    with pytest.raises(MalformedMessageError, match="must name a sparse table"):
        await pull({**named, "of": "flat"})
    with pytest.raises(UnknownTableError):
        await pull({**named, "of": "none"})

    assert np.array_equal(together, expected[order])
    assert np.array_equal(later, expected[order])
