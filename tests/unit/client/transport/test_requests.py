"""Splitting tables over pservers and putting answers together again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet.training.modes.geo.exchange_rows import received_ids
from paramfleet.transport.requests import Read, ReadPlan, Write, dense_slice, write_messages
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import WireDtype, encode_rows, pack_ids, unpack_ids
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rowstore import RowShapeError


def placement(servers: int, shards: int = 8) -> Placement:
    return Placement(endpoints=tuple(f"h:{i}" for i in range(servers)), num_shards=shards)


def sorted_rows(ids: list[int], shards: int = 8) -> RowIds:
    unique, _, offsets = partition(np.array(ids, np.int64), shards)
    return RowIds(unique, offsets)


def answer(message: Message, dim: int) -> Message:
    """Answer as a pserver would whose row of id i is (i, i, ...)."""
    ids = message.tensors["0.ids"]
    rows = np.repeat(ids.astype(np.float32)[:, None], dim, axis=1)
    return Message(fields={}, tensors={"0.rows": rows})


@given(
    servers=st.integers(1, 8),
    ids=st.lists(st.integers(0, 1 << 20), unique=True, max_size=60),
    dim=st.integers(1, 4),
)
def test_every_row_comes_back_to_its_id(servers: int, ids: list[int], dim: int) -> None:
    wanted = sorted_rows(ids)
    plan = ReadPlan([Read(table="t", rows=wanted, dim=dim)], placement(servers))

    messages = plan.messages(rank=0, min_step=0)
    (rows,) = plan.join([answer(message, dim) for message in messages])

    assert rows.shape == (len(ids), dim)
    assert (rows == wanted.ids[:, None].astype(np.float32)).all()


def test_what_one_pserver_answers_is_taken_as_it_is() -> None:
    plan = ReadPlan([Read(table="t", rows=sorted_rows([7, 1, 4]), dim=2)], placement(1))
    (message,) = plan.messages(rank=0, min_step=0)
    one = answer(message, 2)

    assert plan.join([one])[0] is one.tensors["0.rows"]


def test_an_answer_of_another_shape_is_refused() -> None:
    plan = ReadPlan([Read(table="t", rows=sorted_rows([7, 1, 4]), dim=2)], placement(1))
    (message,) = plan.messages(rank=0, min_step=0)

    with pytest.raises(RowShapeError, match="'t'"):
        plan.join([answer(message, 3)])


@given(servers=st.integers(1, 8), size=st.integers(0, 50))
def test_dense_slices_cover_a_table_once(servers: int, size: int) -> None:
    slices = [dense_slice(size, placement(servers), server) for server in range(servers)]

    covered = [index for part in slices for index in range(part.start, part.stop)]
    assert covered == list(range(size))


@given(
    servers=st.integers(1, 4), ids=st.lists(st.integers(0, 1 << 24), unique=True, max_size=40)
)
def test_a_write_reaches_each_row_once_and_every_server(servers: int, ids: list[int]) -> None:
    rows = sorted_rows(ids)
    values = rows.ids[:, None].astype(np.float32)
    writes = [
        Write(table="t", values=values, rows=rows, lr=0.5),
        Write(table="d", values=np.arange(5, dtype=np.float32)),
    ]

    messages = write_messages(
        writes,
        placement(servers),
        {"rank": 1},
        values_name="grads",
        part_fields=lambda server, _: {"ack": server},
    )

    assert len(messages) == servers
    for message in messages:
        for name in ("0.ids", "0.grads"):
            tensor = message.tensors[name]
            whole = values if name == "0.grads" else rows.ids
            assert not tensor.size or np.shares_memory(tensor, whole), "a slice, not a copy"
    assert sorted(np.concatenate([m.tensors["0.ids"] for m in messages])) == sorted(ids)
    assert np.concatenate([m.tensors["1.grads"] for m in messages]).tolist() == [0, 1, 2, 3, 4]
    for server, message in enumerate(messages):
        assert (message.tensors["0.grads"][:, 0] == message.tensors["0.ids"]).all()
        assert message.tensors["0.offsets"][-1] == len(message.tensors["0.ids"])
        assert message.fields["rank"] == 1
        about = {"ack": server, "unique": True}
        assert message.fields["parts"][0] == {"table": "t", "lr": 0.5, **about}


def narrow_write(table: str, rows: RowIds, dim: int, wire: WireDtype) -> Write:
    values = np.ones((len(rows.ids), dim), np.float32)
    encoded = [
        encode_rows(values[rows.within(placement(2).shards_of(server))], wire)
        for server in (0, 1)
    ]
    return Write(table=table, values=values, rows=rows, wire=wire, encoded=encoded)


def test_ids_of_several_tables_travel_once_beside_narrow_numbers() -> None:
    rows, others = (sorted_rows(list(range(start, 400, 2))).sorted()[0] for start in (0, 1))
    writes = [
        narrow_write("deep", rows, 8, "int8"),
        narrow_write("wide", rows, 1, "bfloat16"),
        narrow_write("other", others, 8, "int8"),
        replace(narrow_write("again", rows, 8, "int8"), wire="float32", encoded=None),
    ]

    for message in write_messages(writes, placement(2), {}, values_name="deltas"):
        parts = message.fields["parts"]
        assert [part.get("ids") for part in parts] == ["delta", "same", "delta", None]
        assert parts[1]["as"] == 0
        assert [f"{i}.ids" in message.tensors for i in range(4)] == [True, False, True, True]
        assert [f"{i}.offsets" in message.tensors for i in range(4)] == [
            True,
            False,
            True,
            True,
        ]


def test_an_answer_may_name_an_earlier_part_of_as_many_ids() -> None:
    def reported(rows: int, **about: Any) -> Message:
        tensors: dict[str, np.ndarray[Any, Any]] = {"0.ids": np.arange(3)}
        tensors |= {"0.rows": np.zeros((3, 8)), "1.rows": np.zeros((rows, 1))}
        return Message(fields={"parts": [{}, {"ids": "same", **about}]}, tensors=tensors)

    assert received_ids(reported(3, **{"as": 0}), 1).tolist() == [0, 1, 2]
    for wrong in (reported(2, **{"as": 0}), reported(3, **{"as": 1}), reported(3)):
        with pytest.raises(MalformedMessageError):
            received_ids(wrong, 1)


def test_dense_and_sparse_tables_travel_in_one_pull() -> None:
    reads = [Read(table="t", rows=sorted_rows([5]), dim=1), Read(table="d", size=4)]
    plan = ReadPlan(reads, placement(2))

    messages = plan.messages(rank=0, min_step=9)

    assert [m.fields["min_version"] for m in messages] == [9, 9]
    answers = [
        Message(
            fields={},
            tensors={
                "0.rows": np.zeros((len(m.tensors["0.ids"]), 1), np.float32),
                "1.rows": np.full(2, server, np.float32),
            },
        )
        for server, m in enumerate(messages)
    ]
    assert plan.join(answers)[1] == pytest.approx([0, 0, 1, 1])


@given(
    servers=st.integers(1, 4),
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60),
    wire=st.sampled_from(["float16", "bfloat16", "int8"]),
)
def test_a_narrow_answer_comes_back_to_the_ids_as_they_were_asked(
    servers: int, ids: list[int], wire: WireDtype
) -> None:
    wanted = sorted_rows(ids)
    plan = ReadPlan([Read(table="t", rows=wanted, dim=3, wire=wire)], placement(servers))

    def narrow(message: Message) -> Message:
        """Answer as a pserver would whose rows are ids modulo 101."""
        (part,) = message.fields["parts"]
        assert part["wire"] == wire
        found = message.tensors["0.ids"]
        if part.get("ids") == "delta":
            unpacked = unpack_ids(found, message.tensors["0.offsets"])
            assert unpacked is not None
            found = unpacked
        rows = np.repeat((found % 101).astype(np.float32)[:, None], 3, axis=1)
        encoded = encode_rows(rows, wire)
        scales = {} if encoded.scales is None else {"0.scales": encoded.scales}
        return Message(fields={}, tensors={"0.rows": encoded.rows, **scales})

    (rows,) = plan.join([narrow(m) for m in plan.messages(rank=0, min_step=0)])

    assert np.abs(rows - (wanted.ids % 101).astype(np.float32)[:, None]).max(initial=0) <= 1


def test_neighbouring_ids_travel_packed_only_beside_narrow_numbers() -> None:
    wanted = sorted_rows(list(range(400)))

    sizes = {}
    wires: tuple[WireDtype, ...] = ("float32", "bfloat16")
    for wire in wires:
        read = Read(table="t", rows=wanted, dim=3, wire=wire)
        (message,) = ReadPlan([read], placement(1)).messages(rank=0, min_step=0)
        sizes[wire] = message.tensors["0.ids"].nbytes

    assert sizes["float32"] == 3200
    assert sizes["bfloat16"] < 500


def received(ids: list[int], **changes: np.ndarray) -> Message:
    """Return an answer of an exchange with packed ids."""
    batch = np.array(ids, np.int64)
    offsets = np.array([0, 20, len(ids)], np.int64)
    packed = pack_ids(batch, offsets)
    assert packed is not None
    rows = np.zeros((len(ids), 2), np.float32)
    tensors: dict[str, np.ndarray] = {"0.ids": packed, "0.offsets": offsets, "0.rows": rows}
    return Message(fields={"parts": [{"ids": "delta"}]}, tensors={**tensors, **changes})


def test_packed_ids_of_an_answer_are_read() -> None:
    assert received_ids(received(list(range(50))), 0).tolist() == list(range(50))


@pytest.mark.parametrize(
    "changes",
    [
        {"0.ids": np.zeros(9, np.uint8)},
        {"0.offsets": np.array([0, 1 << 50], np.int64)},
        {"0.offsets": np.array([0, 60, 50], np.int64)},
        {"0.rows": np.zeros((49, 2))},
    ],
)
def test_packed_ids_that_are_none_are_refused(changes: dict[str, np.ndarray]) -> None:
    with pytest.raises(MalformedMessageError, match="must be packed ids"):
        received_ids(received(list(range(50)), **changes), 0)
