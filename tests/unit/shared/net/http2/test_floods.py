"""Peers that ask without end are cut off, whatever they ask with."""

import struct

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from paramfleet_shared.net.http2.events import ConnectionFault, RequestReceived
from paramfleet_shared.net.http2.frames import ErrorCode
from paramfleet_shared.net.http2.headers.hpack_memo import StaticEncoder
from paramfleet_shared.net.http2.limits.floods import FloodGuard
from paramfleet_shared.net.http2.server import ServerConnection
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.testing.http2_ends import OurEnd

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
POST = StaticEncoder().encode(
    [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/a")]
)
FEW = Limits(max_control_frames_per_s=100, max_resets_per_s=10, max_unsent_control_bytes=3000)


def greeted(limits: Limits = FEW) -> OurEnd:
    end = OurEnd(ServerConnection(limits, 0.0))
    end.feed(PREFACE + SettingsFrame(0).serialize())
    end.take()
    return end


def code_of_goaway(end: OurEnd) -> int | None:
    """Return the error code of the GOAWAY the server has written, None without one."""
    data = memoryview(end.take())
    while data:
        frame, length = Frame.parse_frame_header(data[:9])
        frame.parse_body(data[9 : 9 + length])
        if isinstance(frame, GoAwayFrame):
            return frame.error_code
        data = data[9 + length :]
    return None


def headers(stream: int, *, flags: tuple[str, ...] = ("END_HEADERS",)) -> bytes:
    return HeadersFrame(stream, POST, flags=flags).serialize()


def test_rapid_reset_ends_the_connection() -> None:
    end = greeted()

    for stream in range(1, 2 * 12, 2):
        end.feed(headers(stream) + RstStreamFrame(stream, error_code=8).serialize())

    assert end.connection.end_reason == "rapid reset"
    assert code_of_goaway(end) == ErrorCode.ENHANCE_YOUR_CALM


def test_resets_at_a_human_pace_do_not() -> None:
    end = greeted()

    for turn, stream in enumerate(range(1, 2 * 50, 2)):
        end.now = turn * 0.2
        end.feed(headers(stream) + RstStreamFrame(stream, error_code=8).serialize())

    assert end.connection.end_reason is None
    assert end.connection.num_streams == 0


@pytest.mark.parametrize(
    "frame",
    [
        PingFrame(0, opaque_data=b"12345678"),
        SettingsFrame(0, settings={3: 7}),
        SettingsFrame(0),
        DataFrame(1, b""),
        DataFrame(1, b"", flags=("PADDED",), pad_length=3),
        PriorityFrame(1, depends_on=3),
        WindowUpdateFrame(1, window_increment=1),
    ],
    ids=lambda frame: type(frame).__name__ + ("+" if "PADDED" in frame.flags else ""),
)
def test_frames_that_cost_their_sender_nothing_are_counted(frame: Frame) -> None:
    end = greeted()
    end.feed(headers(1))

    for _ in range(101):
        end.feed(frame.serialize())
        end.take() if end.connection.end_reason is None else None

    assert end.connection.end_reason == "control frame flood"
    assert code_of_goaway(end) == ErrorCode.ENHANCE_YOUR_CALM


def test_a_peer_that_asks_and_does_not_read_is_cut_off() -> None:
    end = greeted(Limits(max_unsent_control_bytes=3000))

    for _ in range(3000 // 17 + 2):  # the answers stay where they are
        end.feed(PingFrame(0, opaque_data=b"12345678").serialize())

    assert end.connection.end_reason == "the peer sends requests and does not read the answers"


def test_window_updates_of_a_real_reader_are_free() -> None:
    end = greeted()
    end.feed(headers(1))

    for _ in range(300):
        end.feed(WindowUpdateFrame(0, window_increment=16_384).serialize())

    assert end.connection.end_reason is None


def test_endless_continuations_are_cut_off() -> None:
    end = greeted()
    end.feed(headers(1, flags=()))

    for _ in range(40):
        end.feed(ContinuationFrame(1, bytes(1000)).serialize())

    assert end.connection.end_reason == "header block too long"
    assert code_of_goaway(end) == ErrorCode.ENHANCE_YOUR_CALM


def test_empty_continuations_are_cut_off() -> None:
    end = greeted()
    end.feed(headers(1, flags=()))

    for _ in range(70):
        end.feed(ContinuationFrame(1, b"").serialize())

    assert end.connection.end_reason is not None


def test_a_refused_request_without_a_body_is_over_at_once() -> None:
    end = greeted(Limits(max_streams=1))

    end.feed(headers(1))
    end.feed(headers(3, flags=("END_HEADERS", "END_STREAM")))

    assert end.events == []
    assert end.connection.num_streams == 1


def test_a_block_in_several_frames_is_one_request() -> None:
    end = greeted()

    end.feed(HeadersFrame(1, POST[:3], flags=("END_STREAM",)).serialize())
    end.feed(ContinuationFrame(1, POST[3:7]).serialize())
    end.feed(ContinuationFrame(1, POST[7:], flags=("END_HEADERS",)).serialize())

    assert [type(event) for event in end.events] == [RequestReceived]


def test_streams_refused_without_end_are_cut_off() -> None:
    end = greeted(Limits(max_control_frames_per_s=100, max_streams=1))

    for stream in range(1, 2 * 110, 2):
        end.feed(headers(stream))
        end.take() if end.connection.end_reason is None else None

    assert end.connection.end_reason == "control frame flood"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">HBBBL", 0xFFFF, 0, 0, 0, 1), "frame over the limit"),
        (struct.pack(">HBBBL", 0x0100, 0, 4, 0, 0), "frame of a wrong length"),
        (struct.pack(">HBBBL", 0, 5, 6, 0, 0) + bytes(5), "frame of a wrong length"),
        (struct.pack(">HBBBL", 0, 3, 8, 0, 0) + bytes(3), "frame of a wrong length"),
        (DataFrame(9, b"x").serialize(), "the peer broke the protocol"),
        (struct.pack(">HBBBL", 0, 1, 0, 0, 0) + b"x", "DATA out of place"),
        (struct.pack(">HBBBL", 0, 5, 4, 0, 0) + bytes(5), "SETTINGS of odd length"),
        (struct.pack(">HBBBL", 0, 2, 0, 8, 1) + b"\xff\0", "all padding"),
        (HeadersFrame(1, b"\xff\xff", flags=("END_HEADERS",)).serialize(), "the protocol"),
        (WindowUpdateFrame(0, window_increment=(1 << 31) - 1).serialize(), "the protocol"),
    ],
)  # fmt: skip
def test_a_broken_frame_ends_the_connection_with_a_goaway(data: bytes, reason: str) -> None:
    end = greeted()

    end.feed(data)

    assert end.connection.end_reason is not None
    assert reason in end.connection.end_reason
    assert code_of_goaway(end) is not None


def test_a_peer_that_speaks_something_else_is_told_at_its_first_bytes() -> None:
    end = OurEnd(ServerConnection(Limits(), 0.0))

    end.feed(b"GET / HTTP/1.1\r\n")

    assert end.connection.end_reason == "the peer does not use HTTP/2"


def test_a_preface_may_come_byte_by_byte() -> None:
    end = OurEnd(ServerConnection(Limits(), 0.0))

    for byte in PREFACE + SettingsFrame(0).serialize() + headers(1):
        end.feed(bytes([byte]))

    assert end.connection.end_reason is None
    assert end.connection.num_streams == 1


def test_unknown_frames_are_ignored_as_the_rfc_demands() -> None:
    end = greeted()

    end.feed(struct.pack(">HBBBL", 0, 3, 0xBE, 0, 0) + b"abc")

    assert end.connection.end_reason is None


def test_many_small_frames_fit_however_they_fall_into_the_buffer() -> None:
    end = greeted(Limits())
    ping = PingFrame(0, opaque_data=b"12345678").serialize()

    end.feed(ping * 10_000)

    assert end.connection.end_reason is None
    assert (
        end.take() == PingFrame(0, opaque_data=b"12345678", flags=("ACK",)).serialize() * 10_000
    )


def test_padding_is_taken_off() -> None:
    end = greeted()
    end.feed(headers(1))

    padded = DataFrame(1, b"hello", flags=("PADDED",), pad_length=7).serialize()
    end.feed(padded[:12])
    end.feed(padded[12:])
    end.feed(DataFrame(1, b" world", flags=("END_STREAM",)).serialize())

    (request,) = end.events
    assert isinstance(request, RequestReceived)
    assert bytes(request.body) == b"hello world"


def test_padded_payloads_keep_to_the_limit() -> None:
    end = greeted(Limits(max_body_bytes=3))
    end.feed(headers(1))

    end.feed(DataFrame(1, b"hello", flags=("PADDED",), pad_length=7).serialize())

    assert len(end.events) == 1
    assert end.connection.end_reason is None


def test_the_guard_forgets_with_each_second() -> None:
    guard = FloodGuard(Limits(max_control_frames_per_s=2, max_resets_per_s=1))
    for now in (0.0, 2.0, 4.0):
        guard.count_control(now)
        guard.count_control(now)
        guard.count_reset(now)

    with pytest.raises(ConnectionFault, match="control frame flood"):
        guard.count_control(4.5)
    with pytest.raises(ConnectionFault, match="rapid reset"):
        guard.count_reset(4.5)
