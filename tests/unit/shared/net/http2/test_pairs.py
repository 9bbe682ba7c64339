"""Our connection against itself and against plain h2, in every odd way to chop bytes."""

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.http2.events import (
    ConnectionEnded,
    PeerReady,
    RequestReceived,
    ResponseReceived,
    StreamLost,
)
from paramfleet_shared.net.http2.frames import ErrorCode
from paramfleet_shared.net.http2.headers.hpack_memo import Header
from paramfleet_shared.net.http2.server import ServerConnection
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.testing.http2_ends import End, OurEnd, PlainEnd, exchange

POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/a")]


def with_length(body: bytes) -> list[Header]:
    return [*POST, (b"content-length", b"%d" % len(body))]


def client_end(limits: Limits | None = None) -> tuple[ClientConnection, OurEnd]:
    connection = ClientConnection(limits or Limits(), 0.0)
    return connection, OurEnd(connection)


def server_end(limits: Limits | None = None) -> tuple[ServerConnection, OurEnd]:
    connection = ServerConnection(limits or Limits(), 0.0)
    return connection, OurEnd(connection)


def reversed_bytes(body: bytes) -> bytes:
    return body[::-1]


def answer_requests(server: ServerConnection, end: OurEnd, answered: set[int]) -> bool:
    """Answer what has not been answered, with the body reversed; True if anything was."""
    before = len(answered)
    for event in end.events:
        if isinstance(event, RequestReceived) and event.stream_id not in answered:
            answered.add(event.stream_id)
            server.respond(event.stream_id, 200, [], [reversed_bytes(bytes(event.body))])
    return len(answered) > before


def converse(
    left: End, right: End, serve: Callable[[], bool], cut: Callable[[bytes], list[bytes]]
) -> None:
    exchange(left, right, cut=cut)
    while serve():
        exchange(left, right, cut=cut)


def chopper(seed: int, longest: int) -> Callable[[bytes], list[bytes]]:
    rng = random.Random(seed)

    def cut(data: bytes) -> list[bytes]:
        pieces = []
        while data:
            length = rng.randint(1, longest)
            pieces.append(data[:length])
            data = data[length:]
        return pieces

    return cut


odd_limits = st.builds(
    Limits,
    stream_window_bytes=st.sampled_from([1, 100, 5_000, 65_535, 16 << 20]),
    connection_window_bytes=st.sampled_from([65_535, 100_000, (1 << 31) - 1]),
    chunk_bytes=st.sampled_from([1000, 16_384, 1 << 20]),
    max_frame_bytes=st.sampled_from([16_384, 100_000, 1 << 20]),
)
sizes = st.lists(
    st.sampled_from([0, 1, 63, 1_000, 16_384, 70_001, 120_000]), min_size=1, max_size=5
)


def bodies_of(lengths: list[int]) -> list[bytes]:
    return [random.Random(i).randbytes(length) for i, length in enumerate(lengths)]


@pytest.mark.slow
@given(odd_limits, odd_limits, sizes, st.integers(0, 1000), st.sampled_from([7, 500, 100_000]))
@settings(max_examples=20)
def test_our_client_and_our_server_exchange_any_bodies(
    ours: Limits, theirs: Limits, lengths: list[int], seed: int, longest: int
) -> None:
    client, left = client_end(ours)
    server, right = server_end(theirs)
    bodies = [
        b[:300] if 1 in {ours.stream_window_bytes, theirs.stream_window_bytes} else b
        for b in bodies_of(lengths)
    ]
    exchange(left, right)

    streams = {client.request(with_length(b), [b] if b else [], 0.0): b for b in bodies}
    answered: set[int] = set()
    converse(
        left, right, lambda: answer_requests(server, right, answered), chopper(seed, longest)
    )

    answers = {
        e.stream_id: bytes(e.body) for e in left.events if isinstance(e, ResponseReceived)
    }
    assert answers == {stream: body[::-1] for stream, body in streams.items()}
    assert client.num_streams == server.num_streams == 0
    assert client.end_reason is server.end_reason is None


@pytest.mark.slow
@given(odd_limits, sizes, st.integers(0, 1000), st.sampled_from([1, 1000, 65_535, 1 << 24]))
@settings(max_examples=20)
def test_a_plain_client_is_served(
    limits: Limits, lengths: list[int], seed: int, window: int
) -> None:
    server, right = server_end(limits)
    left = PlainEnd(client_side=True, window_bytes=window)
    bodies = [
        b[:300] if 1 in {window, limits.stream_window_bytes} else b for b in bodies_of(lengths)
    ]
    exchange(left, right)

    streams = {
        left.request(body): body for body in bodies
    }  # no content-length: bodies must grow
    answered: set[int] = set()
    converse(left, right, lambda: answer_requests(server, right, answered), chopper(seed, 3000))

    assert sorted(left.ended) == sorted(streams)
    assert {s: bytes(left.received.get(s, b"")) for s in streams} == {
        s: body[::-1] for s, body in streams.items()
    }
    assert server.num_streams == 0


@pytest.mark.slow
@given(odd_limits, sizes, st.integers(0, 1000), st.sampled_from([1, 1000, 65_535, 1 << 24]))
@settings(max_examples=20)
def test_a_plain_server_is_asked(
    limits: Limits, lengths: list[int], seed: int, window: int
) -> None:
    client, left = client_end(limits)
    right = PlainEnd(client_side=False, window_bytes=window, answer=reversed_bytes)
    bodies = [
        b[:300] if 1 in {window, limits.stream_window_bytes} else b for b in bodies_of(lengths)
    ]
    exchange(left, right)

    streams = {client.request(with_length(b), [b], 0.0): b for b in bodies}
    exchange(left, right, cut=chopper(seed, 3000))

    answers = {
        e.stream_id: bytes(e.body) for e in left.events if isinstance(e, ResponseReceived)
    }
    assert answers == {stream: body[::-1] for stream, body in streams.items()}
    assert client.num_streams == 0


@pytest.mark.slow
@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_calls_given_up_at_random_leave_nothing_behind(seed: int) -> None:
    rng = random.Random(seed)
    limits = Limits(stream_window_bytes=rng.choice([1000, 70_000]), chunk_bytes=5_000)
    client, left = client_end(limits)
    server, right = server_end(limits)
    exchange(left, right)
    kept: dict[int, bytes] = {}
    answered: set[int] = set()

    for _ in range(12):
        body = rng.randbytes(rng.randint(0, 40_000))
        stream = client.request(with_length(body), [body], 0.0)
        for _ in range(rng.randint(0, 6)):  # let a little of it travel
            right.feed(left.take())
            left.feed(right.take())
            if rng.random() < 0.5:
                answer_requests(server, right, answered)
        if rng.random() < 0.5:
            client.reset(stream, ErrorCode.CANCEL)
        else:
            kept[stream] = body
    converse(left, right, lambda: answer_requests(server, right, answered), chopper(seed, 9000))

    answers = {
        e.stream_id: bytes(e.body) for e in left.events if isinstance(e, ResponseReceived)
    }
    assert {s: answers[s] for s in kept} == {s: body[::-1] for s, body in kept.items()}
    assert client.num_streams == server.num_streams == 0
    assert client.end_reason is server.end_reason is None


@pytest.mark.slow
@given(
    st.integers(0, 10_000),
    st.sampled_from([1_000, 16_384, 65_535, 1 << 24]),
    st.sampled_from([1_000, 65_535, 16 << 20]),
)
@settings(max_examples=20)
def test_a_plain_client_that_gives_calls_up_gets_the_others(
    seed: int, window: int, our_window: int
) -> None:
    rng = random.Random(seed)
    server, right = server_end(Limits(stream_window_bytes=our_window, chunk_bytes=7_000))
    left = PlainEnd(client_side=True, window_bytes=window)
    exchange(left, right)
    kept: dict[int, bytes] = {}
    answered: set[int] = set()

    for _ in range(12):
        body = rng.randbytes(rng.randint(1, 40_000))
        stream = left.request(body)
        for _ in range(rng.randint(0, 6)):
            right.feed(left.take())
            left.feed(right.take())
            if rng.random() < 0.5:
                answer_requests(server, right, answered)
        if rng.random() < 0.5 and stream not in left.ended:
            left.give_up(stream)
        else:
            kept[stream] = body
    converse(left, right, lambda: answer_requests(server, right, answered), chopper(seed, 9000))

    assert {s: bytes(left.received[s]) for s in kept} == {s: b[::-1] for s, b in kept.items()}
    assert server.num_streams == 0
    assert (server.end_reason, left.goaway) == (None, None)


@pytest.mark.slow
@given(st.integers(0, 10_000), st.sampled_from([1_000, 65_535, 1 << 24]))
@settings(max_examples=20)
def test_calls_to_a_plain_server_may_be_given_up(seed: int, window: int) -> None:
    rng = random.Random(seed)
    client, left = client_end(Limits(stream_window_bytes=rng.choice([1_000, 65_535, 1 << 20])))
    right = PlainEnd(client_side=False, window_bytes=window, answer=reversed_bytes)
    exchange(left, right)
    kept: dict[int, bytes] = {}

    for _ in range(12):
        body = rng.randbytes(rng.randint(1, 40_000))
        stream = client.request(with_length(body), [body], 0.0)
        for _ in range(rng.randint(0, 6)):
            right.feed(left.take())
            left.feed(right.take())
        if rng.random() < 0.5:
            client.reset(stream, ErrorCode.CANCEL)
        else:
            kept[stream] = body
    exchange(left, right, cut=chopper(seed, 9000))

    answers = {
        e.stream_id: bytes(e.body) for e in left.events if isinstance(e, ResponseReceived)
    }
    assert {s: answers[s] for s in kept} == {s: body[::-1] for s, body in kept.items()}
    assert client.num_streams == 0
    assert client.end_reason is None


def test_a_call_that_is_given_up_lets_go_of_its_arrays() -> None:
    server, right = server_end()
    left = PlainEnd(client_side=True, window_bytes=0)
    exchange(left, right)
    answer = np.zeros(100_000, np.uint8)
    views: list[weakref.ref[object]] = []

    for _ in range(3):
        stream = left.request(b"x")
        exchange(left, right)
        view = answer.copy()
        views.append(weakref.ref(view))
        server.respond(stream, 200, [], [view.data])
        del view
        exchange(left, right)  # no window: nothing of it leaves
        left.give_up(stream)
        exchange(left, right)

    assert [view() for view in views] == [None] * 3
    assert server.num_streams == 0


def test_small_bodies_in_one_slab_are_each_their_owners() -> None:
    client, left = client_end()
    _, right = server_end(Limits(max_streams=200))
    exchange(left, right)
    bodies = [bytes([i]) * (50 + i) for i in range(200)]

    for batch in range(0, 200, 100):
        for body in bodies[batch : batch + 100]:
            client.request(with_length(body), [body], 0.0)
        exchange(left, right)
    requests = [e for e in right.events if isinstance(e, RequestReceived)]
    requests[7].body[:] = bytes(len(requests[7].body))

    addresses = [np.frombuffer(e.body, np.uint8).ctypes.data for e in requests]
    assert all(address % 64 == 0 for address in addresses)
    assert [bytes(e.body) for e in requests if e is not requests[7]] == [
        body for i, body in enumerate(bodies) if i != 7
    ]


def test_a_peer_that_has_not_seen_our_settings_may_use_the_default_window() -> None:
    server, right = server_end(Limits(stream_window_bytes=100))
    left = PlainEnd(client_side=True)

    stream = left.request(bytes(60_000))
    while sent := left.take():
        right.feed(sent)

    assert server.end_reason is None
    assert [e.stream_id for e in right.events if isinstance(e, RequestReceived)] == [stream]


def test_padding_does_not_use_a_declared_bodys_window_up() -> None:
    server, right = server_end(Limits(stream_window_bytes=4_000))
    left = PlainEnd(client_side=True)
    exchange(left, right)
    left.h2.send_headers(1, with_length(bytes(3_000)))

    for number in range(30):
        left.h2.send_data(1, bytes(100), end_stream=number == 29, pad_length=200)
        exchange(left, right)

    assert [e.stream_id for e in right.events if isinstance(e, RequestReceived)] == [1]
    assert server.end_reason is None


def test_nothing_is_copied_on_the_way_out_nor_moved_on_the_way_in() -> None:
    client, left = client_end()
    _, right = server_end()
    exchange(left, right)
    body = memoryview(bytearray(random.Random(0).randbytes(3_000_000)))

    client.request(with_length(body), [body], 0.0)  # type: ignore[arg-type]  # only its length
    exchange(left, right)

    assert all(view.obj is body.obj for view in left.sent_views)
    request = next(e for e in right.events if isinstance(e, RequestReceived))
    assert request.body == body
    assert not request.body.readonly


def test_concurrent_bodies_take_turns() -> None:
    client, left = client_end(Limits(chunk_bytes=20_000))
    _, right = server_end()
    exchange(left, right)

    long = client.request(POST, [bytes(1_000_000)], 0.0)
    short = client.request(POST, [bytes(1_000)], 0.0)
    while not right.events:
        right.feed(left.take())

    first = right.events[0]
    assert isinstance(first, RequestReceived)
    assert first.stream_id == short != long


def test_a_client_is_ready_when_the_settings_of_the_server_came() -> None:
    client, left = client_end()
    _, right = server_end(Limits(max_streams=1))

    exchange(left, right)

    assert PeerReady() in left.events
    assert client.may_request
    client.request(POST, [], 0.0)
    assert not client.may_request


def test_bodies_in_several_pieces_arrive_as_one() -> None:
    client, left = client_end(Limits(chunk_bytes=10))
    _, right = server_end()
    exchange(left, right)

    client.request(POST, [b"abc", b"", b"defghijklmnop", b"q"], 0.0)
    exchange(left, right)

    request = next(e for e in right.events if isinstance(e, RequestReceived))
    assert bytes(request.body) == b"abcdefghijklmnopq"


def test_a_lost_transport_loses_every_call() -> None:
    client, left = client_end()
    _, right = server_end()
    exchange(left, right)
    stream = client.request(POST, [bytes(100)], 0.0)

    events = client.lost("the cable was cut")

    assert events == [
        StreamLost(stream, "the cable was cut", processed=True),
        ConnectionEnded("the cable was cut"),
    ]
    assert client.lost("again") == []
    assert client.take_buffers(0.0) == []
    assert client.buffer_updated(1, 0.0) == []
    client.ping(b"12345678")
    client.reset(stream, ErrorCode.CANCEL)
    assert client.close() == []


def test_a_connection_closed_mid_body_says_so_to_both_owners() -> None:
    client, left = client_end(Limits(chunk_bytes=1000))
    server, right = server_end()
    exchange(left, right)
    stream = client.request(with_length(bytes(900_000)), [bytes(900_000)], 0.0)
    right.feed(left.take())

    server.close()
    exchange(left, right)

    assert server.end_reason == "closed by this side"
    assert [e for e in right.events if isinstance(e, ConnectionEnded)] == []  # it was told
    assert client.draining
    assert client.lost("closed")[0] == StreamLost(stream, "closed", processed=True)


def feed(connection: ServerConnection | ClientConnection, data: bytes) -> None:
    while data:
        place = connection.get_buffer()
        num = min(len(place), len(data))
        place[:num] = data[:num]
        connection.buffer_updated(num, 0.0)
        data = data[num:]


def test_what_bodies_on_their_way_hold_is_known_at_both_ends() -> None:
    (client, left), (server, right) = client_end(), server_end()
    exchange(left, right)
    body = bytes(50_000)

    stream = client.request(with_length(body), [body], 0.0)
    waiting = client.num_held
    sent = b"".join(client.take_buffers(0.0))
    feed(server, sent[:20_000])
    half = server.num_held
    feed(server, sent[20_000:])
    whole = server.num_held
    server.respond(stream, 200, [], [body])

    assert waiting == (0, 50_000)
    assert client.num_held == (0, 0)
    assert half == (50_000, 0)
    assert whole == (0, 0)
    assert server.num_held == (0, 50_000)


def test_a_client_that_vanishes_in_the_middle_of_a_body_leaves_nothing() -> None:
    (client, left), (server, right) = client_end(), server_end()
    exchange(left, right)
    body = bytes(50_000)
    client.request(with_length(body), [body], 0.0)
    feed(server, b"".join(client.take_buffers(0.0))[:20_000])

    server.lost("the wire was cut")

    assert server.num_held == (0, 0)


@pytest.mark.parametrize("make", [client_end, server_end])
def test_a_connection_that_was_lost_is_freed_at_once(make: Callable[[], Any]) -> None:
    """It holds tens of kilobytes, and a collection of cycles may be long in coming."""
    (client, left), (server, right) = client_end(), server_end()
    exchange(left, right)
    client.request(with_length(bytes(50_000)), [bytes(50_000)], 0.0)
    feed(server, b"".join(client.take_buffers(0.0))[:20_000])
    freed = weakref.ref(client if make is client_end else server)
    gc.disable()
    try:
        client.lost("the wire was cut")
        server.lost("the wire was cut")
        del client, left, server, right

        assert freed() is None
    finally:
        gc.enable()
