"""Messages survive the trip, and no bytes of a peer can do more than be refused."""

import contextlib
import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import (
    ALIGNMENT_BYTES,
    MalformedMessageError,
    Message,
    UnencodableMessageError,
    WireVersionError,
    decode,
    encode,
)

DTYPES = ["float32", "float64", "float16", "int64", "int32", "uint8", "uint64", "bool"]

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
messages = st.builds(
    lambda fields, tensors: Message(fields=fields, tensors=tensors),
    st.dictionaries(st.text(max_size=6), plain_values, max_size=4),
    st.dictionaries(st.text(max_size=6), arrays, max_size=4),
)


def joined(message: Message) -> bytes:
    return b"".join(encode(message))


def body_with(
    header: Any, *, tail: bytes = b"", magic: bytes = b"PFMS", version: int = 1
) -> bytes:
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return struct.pack("<4sB3xI", magic, version, len(packed)) + packed + tail


@given(messages)
@settings(max_examples=150)
def test_any_message_comes_back_as_it_was(message: Message) -> None:
    body = joined(message)

    back = decode(body)

    assert back.fields == message.fields
    assert list(back.tensors) == list(message.tensors)
    for name, array in message.tensors.items():
        assert back.tensors[name].dtype == array.dtype
        assert back.tensors[name].shape == array.shape
        assert back.tensors[name].tobytes() == array.tobytes()


@given(messages, st.data())
@settings(max_examples=150)
def test_a_cut_body_is_malformed(message: Message, data: st.DataObject) -> None:
    body = joined(message)
    cut = data.draw(st.integers(0, len(body) - 1))

    with pytest.raises(MalformedMessageError):
        decode(body[:cut])


@given(messages, st.data())
@settings(max_examples=300)
def test_a_corrupted_body_is_read_or_refused_and_nothing_else(
    message: Message, data: st.DataObject
) -> None:
    body = bytearray(joined(message))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(MalformedMessageError, WireVersionError):
        decode(body)


@given(st.binary(max_size=200))
def test_noise_behind_a_good_prefix_is_refused(noise: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        decode(body_with(noise))


def test_long_payloads_are_not_copied_and_start_at_cache_lines() -> None:
    rows = np.arange(4001, dtype=np.float32).reshape(-1, 1)
    ids = np.arange(3, dtype=np.int64)

    buffers = encode(Message(fields={"k": 1}, tensors={"rows": rows, "ids": ids}))

    views = [b for b in buffers if isinstance(b, memoryview)]
    assert [
        np.shares_memory(np.frombuffer(v, np.uint8), a)
        for v, a in zip(views, (rows, ids), strict=True)
    ] == [True, True]
    offset = 0
    for buffer in buffers:
        if isinstance(buffer, memoryview):
            assert offset % ALIGNMENT_BYTES == 0
        offset += len(buffer)


def test_short_payloads_leave_in_one_buffer() -> None:
    tensors = {f"{number}.ids": np.arange(number + 3) for number in range(40)}

    (buffer,) = encode(Message(fields={"k": 1}, tensors=tensors))

    decoded = decode(buffer).tensors
    assert {name: ids.tolist() for name, ids in decoded.items()} == {
        name: ids.tolist() for name, ids in tensors.items()
    }


def test_decoded_tensors_are_views_of_the_body() -> None:
    body = bytearray(joined(Message(tensors={"x": np.zeros(4, np.int32)})))

    x = decode(memoryview(body)).tensors["x"]
    x[0] = 7

    assert decode(memoryview(body)).tensors["x"].tolist() == [7, 0, 0, 0]
    assert not decode(bytes(body)).tensors["x"].flags.writeable


def test_an_array_that_is_not_contiguous_travels_all_the_same() -> None:
    columns = np.arange(6, dtype=np.int64).reshape(2, 3).T

    assert (
        decode(joined(Message(tensors={"c": columns}))).tensors["c"].tolist()
        == columns.tolist()
    )


def test_integers_may_be_keys_inside_a_field() -> None:
    assert decode(joined(Message(fields={"by_rank": {0: 1.5}}))).fields == {"by_rank": {0: 1.5}}


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, np.complex64),
        np.zeros(2, ">f4"),
        np.array(["text"]),
        np.array([None], dtype=object),
    ],
)
def test_a_dtype_the_wire_does_not_know_is_refused_by_its_sender(array: Any) -> None:
    with pytest.raises(UnencodableMessageError, match="tensor 'x'") as caught:
        encode(Message(tensors={"x": array}))
    assert caught.value.where == "tensor 'x'"


@pytest.mark.parametrize("value", [object(), np.int64(3), 2**64, "\ud800", {"a": {1, 2}}])
def test_a_field_that_is_not_plain_is_refused_by_its_sender(value: Any) -> None:
    with pytest.raises(UnencodableMessageError, match="fields must be plain values"):
        encode(Message(fields={"value": value}))


def test_another_version_of_the_wire_is_named() -> None:
    with pytest.raises(WireVersionError, match="version 9") as caught:
        decode(body_with([{}, []], version=9))
    assert (caught.value.found, caught.value.supported) == (9, 1)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"", "shorter than its prefix"),
        (body_with([{}, []], magic=b"HTTP"), "start with PFMS"),
        (body_with([{}, []])[:-1], "longer than the body"),
        (body_with(b"\xc1"), "not msgpack"),
        (body_with(b"\x90\x90"), "not msgpack"),
        (body_with(b"\xff" * 2000), "not msgpack"),
        (body_with(b"\x91" * 3000 + b"\xc0"), "not msgpack"),
        (body_with(msgpack.ExtType(4, b"x")), "not msgpack"),
        (body_with(b"\x81\x90\xc0"), "not msgpack"),
        (body_with({}), "must be [fields, tensors]"),
        (body_with([{1: 2}, []]), "must be [fields, tensors]"),
        (body_with([{}, [["x", "float32"]]]), "[name, dtype, shape]"),
        (body_with([{}, [["x", "object", [1]]]]), "known dtype"),
        (body_with([{}, [["x", ["float32"], [1]]]]), "known dtype"),
        (body_with([{}, [["x", "uint8", [-1]]]]), "impossible shape"),
        (body_with([{}, [["x", "uint8", [True]]]]), "impossible shape"),
        (body_with([{}, [["x", "uint8", [1 << 50]]]]), "impossible shape"),
        (body_with([{}, [["x", "uint8", [1] * 40]]]), "impossible shape"),
        (body_with([{}, [["x", "uint8", [0, 1 << 39, 1 << 39]]]]), "impossible shape"),
        (body_with([{}, [["x", "uint8", [1 << 39]]]]), "does not fit"),
        (body_with([{}, [["x", "uint8", [0]], ["x", "uint8", [0]]]]), "repeats a name"),
        (body_with([{}, []], tail=b"more"), "goes on"),
    ],
)  # fmt: skip
def test_every_lie_is_refused_by_its_rule(body: bytes, rule: str) -> None:
    with pytest.raises(MalformedMessageError) as caught:
        decode(body)
    assert rule in caught.value.rule
    assert caught.value.where in str(caught.value)


def test_a_bool_is_zero_or_one() -> None:
    body = bytearray(joined(Message(tensors={"b": np.array([True, False])})))
    body[-1] = 2

    with pytest.raises(MalformedMessageError, match="bool other than 0 or 1"):
        decode(body)


def test_limits_hold_before_anything_is_read() -> None:
    many = Message(tensors={str(i): np.zeros(0, np.uint8) for i in range(3)})

    with pytest.raises(MalformedMessageError, match="more than 2 tensors"):
        decode(joined(many), Limits(max_tensors=2))
    with pytest.raises(MalformedMessageError, match="the limit"):
        decode(joined(many), Limits(max_header_bytes=4))
