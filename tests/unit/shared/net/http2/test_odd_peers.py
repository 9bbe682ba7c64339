"""Answers that are none, and frames that come late: the client's half, and the server's."""

import pytest

from paramfleet_shared.net.http2 import frames
from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.http2.events import (
    RequestReceived,
    ResponseReceived,
    ResponseTooLarge,
    StreamLost,
)
from paramfleet_shared.net.http2.frames import PREFACE, ErrorCode, FrameType
from paramfleet_shared.net.http2.headers.hpack_memo import Header, StaticEncoder
from paramfleet_shared.net.http2.server import ServerConnection
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.testing.http2_ends import OurEnd

END_STREAM, END_HEADERS = 0x1, 0x4
POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/a")]
OK = (b":status", b"200")


def headers(stream: int, *fields: Header, end: bool = False) -> bytes:
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frames.frame(FrameType.HEADERS, flags, stream, StaticEncoder().encode(fields))


def data(stream: int, payload: bytes, *, end: bool = True) -> bytes:
    return frames.frame(FrameType.DATA, END_STREAM if end else 0, stream, payload)


def asking(limits: Limits | None = None) -> OurEnd:
    """A client that has sent one request, on stream 1, to a server that greeted."""
    connection = ClientConnection(limits or Limits(), 0.0)
    end = OurEnd(connection)
    end.feed(frames.settings({}))
    end.events.clear()
    connection.request(POST, [b"x"], 0.0)
    end.take()
    return end


def serving(limits: Limits | None = None) -> OurEnd:
    end = OurEnd(ServerConnection(limits or Limits(), 0.0))
    end.feed(PREFACE + frames.settings({}))
    end.take()
    return end


def test_an_informational_answer_is_passed_over() -> None:
    end = asking()

    end.feed(headers(1, (b":status", b"103")) + headers(1, OK) + data(1, b"hello"))

    (answer,) = end.events
    assert isinstance(answer, ResponseReceived)
    assert (answer.status, bytes(answer.body)) == (200, b"hello")


def test_an_answer_may_end_with_trailers() -> None:
    end = asking()

    end.feed(headers(1, OK) + data(1, b"hello", end=False) + headers(1, (b"x", b"y"), end=True))

    (answer,) = end.events
    assert isinstance(answer, ResponseReceived)
    assert bytes(answer.body) == b"hello"


@pytest.mark.parametrize(
    "sent",
    [
        headers(1, (b"x-status", b"200")),
        headers(1, (b":status", b"20")),
        headers(1, OK, (b":path", b"/")),
        headers(1, OK, (b"Upper", b"x")),
        headers(1, OK, (b"x", b" y")),
        headers(1, OK, (b"x", b"a\nb")),
        headers(1, OK, (b"content-length", b"7"), (b"content-length", b"8")),
        headers(1, OK, (b"content-length", b"-1")),
        headers(1, OK, (b"content-length", b"5"), end=True),
        headers(1, (b":status", b"100"), end=True),
        headers(1, OK, (b"content-length", b"3")) + data(1, b"four"),
        headers(1, OK, (b"content-length", b"5")) + data(1, b"four"),
        headers(1, OK) + data(1, b"x", end=False) + headers(1, (b"x", b"y")),
        data(1, b"before its headers"),
    ],
)
def test_an_answer_that_is_none_loses_its_call_alone(sent: bytes) -> None:
    end = asking()

    end.feed(sent)

    assert [type(event) for event in end.events] == [StreamLost]
    assert end.connection.num_streams == 0
    assert end.connection.end_reason is None
    assert end.take()[3] == FrameType.RST_STREAM


@pytest.mark.parametrize(
    "sent",
    [
        headers(3, OK),
        headers(2, OK),
        data(3, b"x"),
        frames.reset(2, ErrorCode.CANCEL),
        frames.frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02"),
        frames.settings({frames.Setting.ENABLE_PUSH: 1}),
        frames.frame(FrameType.GOAWAY, 0, 0, b"short"),
    ],
)
def test_what_no_server_may_do_ends_the_connection(sent: bytes) -> None:
    end = asking()

    end.feed(sent)

    assert end.connection.end_reason is not None
    assert end.connection.end_reason.startswith("the peer broke the protocol")


def test_an_answer_to_a_call_that_was_given_up_is_ignored() -> None:
    end = asking()
    end.connection.reset(1, ErrorCode.CANCEL)
    end.take()

    end.feed(headers(1, OK) + data(1, b"late") + frames.window_update(1, 9))

    assert end.events == []
    assert end.take() == b""


def test_an_answer_over_the_limit_without_a_length_is_given_up() -> None:
    end = asking(Limits(max_body_bytes=10))

    end.feed(headers(1, OK) + data(1, bytes(11), end=False) + data(1, b"more"))

    assert end.events == [ResponseTooLarge(1, 11)]
    assert end.connection.end_reason is None


def test_a_peer_that_sends_over_its_window_loses_its_stream() -> None:
    end = serving(Limits(stream_window_bytes=70_000, max_frame_bytes=1 << 20))

    end.feed(headers(1, *POST) + data(1, bytes(70_001)))

    assert [type(event) for event in end.events] == [StreamLost]
    assert end.take() == frames.reset(1, ErrorCode.FLOW_CONTROL_ERROR)


def test_a_peer_that_sends_over_the_connections_window_is_cut_off() -> None:
    end = serving(Limits(connection_window_bytes=70_000, max_frame_bytes=1 << 20))

    end.feed(headers(1, *POST) + data(1, bytes(70_001)))

    assert end.connection.end_reason == "the peer broke the protocol: DATA over the connection"


def test_trailers_of_a_request_that_was_reset_are_ignored() -> None:
    end = serving()
    end.feed(headers(1, *POST))
    end.connection.reset(1, ErrorCode.CANCEL)
    end.take()

    end.feed(headers(1, (b"x", b"y"), end=True) + headers(3, *POST, end=True))

    assert [e.stream_id for e in end.events if isinstance(e, RequestReceived)] == [3]
    assert end.connection.end_reason is None


def test_a_header_list_over_the_limit_ends_the_connection() -> None:
    end = serving(Limits(max_control_frame_bytes=4096))

    end.feed(headers(1, *POST, *((b"x", b"") for _ in range(200))))

    assert end.connection.end_reason == "header list over the limit"


def test_frames_of_closed_streams_without_end_are_cut_off() -> None:
    end = serving(Limits(max_control_frames_per_s=100))
    end.feed(headers(1, *POST) + frames.reset(1, ErrorCode.CANCEL))

    for _ in range(101):
        end.feed(data(1, b"x"))
        end.take() if end.connection.end_reason is None else None

    assert end.connection.end_reason == "control frame flood"


def test_the_streams_a_server_has_reset_are_not_remembered_for_ever() -> None:
    end = serving(Limits(max_streams=1, max_control_frames_per_s=10_000))
    end.feed(headers(1, *POST))

    for stream in range(3, 2 * 2000, 2):
        end.feed(headers(stream, *POST))
        end.take()

    assert len(end.connection._reset_by_us) <= 1024


def test_an_odd_peers_long_blocks_are_not_remembered() -> None:
    end = serving()

    for number in range(20):
        name = b"x" * 2000 + b"%d" % number
        end.feed(headers(2 * number + 1, *POST, (name, b"y"), end=True))

    assert len(end.events_of(RequestReceived)) == 20
    assert end.connection._heads._memo == {}


def test_what_comes_after_the_end_is_thrown_away() -> None:
    end = serving()
    bad = frames.frame(FrameType.GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\x02")

    end.feed(bad + headers(1, *POST, end=True))
    for _ in range(20):  # more than the buffer has room for
        end.feed(headers(1, *POST, end=True) * 200)

    assert end.connection.end_reason == "the client ended the connection, code 2"
    assert end.events_of(RequestReceived) == []
    assert len(end.connection.get_buffer()) > 0
