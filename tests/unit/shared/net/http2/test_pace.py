"""Slow heads, slow frames, slow bodies: who is cut off, in logical time."""

import tracemalloc

import pytest

from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.http2.events import ConnectionEnded, StreamLost
from paramfleet_shared.net.http2.frames import PREFACE, Flag, FrameType, frame
from paramfleet_shared.net.http2.limits.pace import BodyPace, FramePace, Moving, look_period_s
from paramfleet_shared.net.http2.server import ServerConnection
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.testing.http2_ends import OurEnd, PlainEnd, exchange

POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/a")]
LIMITS = Limits(head_timeout_s=10.0, body_idle_timeout_s=30.0, min_body_bytes_per_s=1000)
TOO_SLOW = "its body moved too slowly"


def greeted(limits: Limits = LIMITS) -> tuple[ServerConnection, OurEnd, PlainEnd]:
    server = ServerConnection(limits, 0.0)
    right, left = OurEnd(server), PlainEnd(client_side=True)
    exchange(left, right)
    return server, right, left


def ended_at(server: ServerConnection, until_s: int = 400) -> int | None:
    """Look once a second; return when the connection ended."""
    for now in range(1, until_s):
        server.expire(float(now))
        if server.end_reason is not None:
            return now
    return None


@pytest.mark.parametrize(
    "come", [b"", PREFACE[:10], PREFACE, PREFACE + frame(FrameType.SETTINGS, 0, 0)[:8]]
)
def test_a_connection_that_does_not_say_its_settings_is_cut(come: bytes) -> None:
    server = ServerConnection(LIMITS, 0.0)
    if come:
        OurEnd(server).feed(come)

    assert ended_at(server) == 11
    assert server.end_reason == "its preface and settings took the peer too long"


def test_a_connection_that_says_nothing_more_stays() -> None:
    server, _, _ = greeted()

    assert ended_at(server, 100_000) is None


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (frame(FrameType.HEADERS, 0, 1, b"\x82"), "a header block"),
        (frame(FrameType.PING, 0, 0, bytes(8))[:-1], "a frame"),
        (frame(FrameType.PING, 0, 0, bytes(8))[:3], "a frame"),
        (frame(FrameType.DATA, 0, 1, bytes(1000))[:500], "a frame"),
    ],
)
def test_what_comes_in_part_and_never_ends_is_cut(data: bytes, what: str) -> None:
    server, right, left = greeted()
    if data[3:4] == b"\x00":  # DATA is of a stream
        left.h2.send_headers(1, POST)
        exchange(left, right)
    right.feed(data)

    assert ended_at(server) in range(31, 35)
    assert server.end_reason == f"{what} took the peer too long"


def test_a_frame_of_a_byte_a_second_is_cut_like_one_that_stands_still() -> None:
    server, right, _ = greeted()
    ping = frame(FrameType.PING, 0, 0, bytes(8))
    right.feed(ping + ping[:1])
    for now in range(1, 16):
        right.feed(ping[now : now + 1])
        server.expire(float(now))
    assert server.end_reason is None
    right.feed(ping[16:] + ping[:2])  # that one is whole, another has begun

    assert [server.expire(now) for now in range(16, 46)] == [[]] * 30
    ended = server.expire(47.0)

    assert [type(each) for each in ended] == [ConnectionEnded]


def test_a_block_that_grows_by_a_frame_now_and_then_is_cut() -> None:
    server, right, _ = greeted()
    right.feed(frame(FrameType.HEADERS, 0, 1, b"\x82"))
    for now in range(1, 40):
        right.feed(frame(FrameType.CONTINUATION, 0, 1, b"\x86"))
        server.expire(float(now))

    assert server.end_reason == "a header block took the peer too long"


def test_a_body_of_a_byte_a_second_is_reset() -> None:
    server, right, left = greeted()
    left.h2.send_headers(1, [*POST, (b"content-length", b"60000000")])
    exchange(left, right)
    events = []
    for now in range(1, 40):
        right.now = float(now)
        left.h2.send_data(1, b"x")
        exchange(left, right)
        events += [(now, each) for each in server.expire(float(now))]
        if events:
            break

    assert events == [(31, StreamLost(1, TOO_SLOW, processed=True))]
    assert server.end_reason is None


def test_a_body_whose_only_frame_trickles_is_reset_and_lets_its_memory_go() -> None:
    server, right, left = greeted()
    left.h2.send_headers(1, [*POST, (b"content-length", b"60000000")])
    exchange(left, right)
    tracemalloc.start()
    right.feed(frame(FrameType.DATA, 0, 1, bytes(100_000))[:5000])
    held = tracemalloc.get_traced_memory()[0]
    for now in range(1, 40):
        right.feed(b"x")
        server.expire(float(now))
    left_over = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert server.num_streams == 0
    assert held > 50_000_000
    assert left_over < 1_000_000


def test_a_body_as_fast_as_asked_goes_on_and_a_slower_one_does_not() -> None:
    server, right, left = greeted()
    for stream in (1, 3):
        left.h2.send_headers(stream, [*POST, (b"content-length", b"10000000")])
    exchange(left, right)
    lost: list[tuple[int, object]] = []
    for now in range(1, 300):  # two bodies: each owes half of 1000 bytes a second
        right.now = float(now)
        left.h2.send_data(1, bytes(520))
        if 3 in [each.stream_id for each in server._streams.values()]:
            left.h2.send_data(3, bytes(400))
        exchange(left, right)
        lost += [(now, each) for each in server.expire(float(now))]
        if lost:
            break

    assert lost == [(151, StreamLost(3, TOO_SLOW, processed=True))]


def test_an_answer_read_a_byte_a_second_is_reset() -> None:
    limits = Limits(stream_window_bytes=100, min_body_bytes_per_s=1000)
    client, server = ClientConnection(limits, 0.0), ServerConnection(LIMITS, 0.0)
    left, right = OurEnd(client), OurEnd(server)
    exchange(left, right)
    stream = client.request([*POST, (b"content-length", b"1")], [b"x"], 0.0)
    exchange(left, right)
    server.respond(stream, 200, [], [bytes(10_000_000)])
    right.take()
    lost = []
    for now in range(1, 200):
        right.now = float(now)
        right.feed(frame(FrameType.WINDOW_UPDATE, 0, stream, (1).to_bytes(4, "big")))
        right.take()
        lost += server.expire(float(now))
        if lost:
            break

    assert lost == [StreamLost(stream, TOO_SLOW, processed=True)]
    assert 31 <= now < 100


def test_a_process_that_stood_still_does_not_count_it_against_its_peers() -> None:
    pace, frames = BodyPace(LIMITS, 0.0), FramePace(LIMITS, 0.0, "a frame")
    for now in range(1, 21):
        assert pace.late([Moving(1, 0)], float(now)) == []

    assert pace.late([Moving(1, 0)], 1000.0) == []
    assert not frames.is_late("a frame", 10.0, 1000.0)


def test_bodies_that_come_one_after_the_other_owe_nothing_for_those_before() -> None:
    pace = BodyPace(LIMITS, 0.0)

    assert not any(pace.late([Moving(now, 0)], float(now)) for now in range(1, 200))


def test_what_moved_before_a_body_is_not_its_own() -> None:
    pace = BodyPace(LIMITS, 0.0)
    late = [pace.late([Moving(1, 10**9, 10**9)], float(now)) for now in range(1, 40)]

    assert late.index([1]) == 30


@pytest.mark.parametrize(
    ("limits", "period_s"),
    [
        (Limits(), 1.0),
        (Limits(body_idle_timeout_s=0.4), 0.1),
        (Limits(head_timeout_s=0.2), 0.05),
    ],
)
def test_looks_are_as_frequent_as_the_shortest_time_asks(
    limits: Limits, period_s: float
) -> None:
    assert look_period_s(limits) == pytest.approx(period_s)


def test_padding_that_never_ends_is_cut() -> None:
    server, right, left = greeted()
    left.h2.send_headers(1, POST)
    exchange(left, right)
    right.feed(frame(FrameType.DATA, Flag.PADDED, 1, b"\xff" + bytes(1000))[:100])

    assert ended_at(server) is not None
