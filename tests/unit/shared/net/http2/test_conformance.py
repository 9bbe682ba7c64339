"""The cases of h2spec 2.6, one by one, against the server's half of a connection.

A case's name is its group and section, its number there, and what the client does. The
sections of ``http2`` are those of RFC 7540, those of ``hpack`` of RFC 7541. h2spec takes
a closed connection for a right answer to any fault; here the code must be right too.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hpack import Encoder

from paramfleet_shared.net.http2.events import RequestReceived
from paramfleet_shared.net.http2.frames import FRAME_HEADER, PREFACE, ErrorCode, FrameType
from paramfleet_shared.net.http2.server import ServerConnection
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.testing.http2_ends import OurEnd

END_STREAM, END_HEADERS, PADDED, PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
WHOLE = END_STREAM | END_HEADERS
GET = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "127.0.0.1")]
POST = [(":method", "POST"), *GET[1:]]
DUMMY = [(f"x-dummy{i}", "x" * 100) for i in range(5)]
PING = b"12345678"
ANSWER = b"hello"
SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 255, 255])

PROTOCOL = ErrorCode.PROTOCOL_ERROR
CLOSED = ErrorCode.STREAM_CLOSED
SIZE = ErrorCode.FRAME_SIZE_ERROR
FLOW = ErrorCode.FLOW_CONTROL_ERROR
COMPRESSION = ErrorCode.COMPRESSION_ERROR


class Got(NamedTuple):
    """One frame of the server."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Peer:
    """A client that may do anything, and a server that answers every request."""

    def __init__(self) -> None:
        limits = Limits(max_frame_bytes=16_384, max_streams=100)
        self.server = ServerConnection(limits, 0.0)
        self.end = OurEnd(self.server)
        self.got: list[Got] = []
        self._hpack = Encoder()

    def greet(self) -> None:
        self.send(PREFACE)
        self.frame(FrameType.SETTINGS)
        self.frame(FrameType.SETTINGS, ACK)
        self.got.clear()

    def send(self, data: bytes) -> None:
        """Send bytes, have requests answered, and read what comes back."""
        self.end.feed(data)
        for event in self.end.events:
            if isinstance(event, RequestReceived):
                if event.headers[b":method"] == b"HEAD":
                    self.server.respond_to_head(event.stream_id, 200, [], 5)
                else:
                    self.server.respond(event.stream_id, 200, [], [ANSWER])
        self.end.events.clear()
        while written := self.end.take():
            while written:
                high, low, kind, flags, stream = FRAME_HEADER.unpack_from(written)
                length = high << 8 | low
                self.got.append(Got(kind, flags, stream, written[9 : 9 + length]))
                written = written[9 + length :]

    def frame(
        self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"",
        length: int | None = None,
    ) -> None:  # fmt: skip
        length = len(payload) if length is None else length
        self.send(FRAME_HEADER.pack(length >> 8, length & 255, kind, flags, stream) + payload)

    def block(self, headers: list[tuple[str, str]]) -> bytes:
        return self._hpack.encode(headers)

    def headers(
        self,
        headers: list[tuple[str, str]] = GET,
        flags: int = WHOLE,
        stream: int = 1,
        *,
        before: bytes = b"",
        after: bytes = b"",
    ) -> None:
        payload = before + self.block(headers) + after
        self.frame(FrameType.HEADERS, flags, stream, payload)

    def more(self, flags: int = END_HEADERS, stream: int = 1) -> None:
        self.frame(FrameType.CONTINUATION, flags, stream, self.block(DUMMY))

    def data(self, payload: bytes = b"test", flags: int = END_STREAM, stream: int = 1) -> None:
        self.frame(FrameType.DATA, flags, stream, payload)

    def priority(self, stream: int = 1, depends_on: int = 0, weight: int = 255) -> None:
        self.frame(FrameType.PRIORITY, 0, stream, struct.pack(">LB", depends_on, weight))

    def settings(self, *values: tuple[int, int]) -> None:
        payload = b"".join(struct.pack(">HL", *value) for value in values)
        self.frame(FrameType.SETTINGS, 0, 0, payload)

    def window(self, stream: int, num_bytes: int) -> None:
        self.number(FrameType.WINDOW_UPDATE, stream, num_bytes)

    def reset(self, stream: int = 1, code: int = ErrorCode.CANCEL) -> None:
        self.number(FrameType.RST_STREAM, stream, code)

    def number(self, kind: int, stream: int, number: int) -> None:
        self.frame(kind, 0, stream, struct.pack(">L", number))

    def ping(self) -> None:
        self.frame(FrameType.PING, 0, 0, PING)

    def codes(self, kind: int) -> list[int]:
        """Return the error codes of the resets, or of the goodbyes, that came."""
        offset = 4 if kind == FrameType.GOAWAY else 0
        return [
            struct.unpack_from(">L", f.payload, offset)[0] for f in self.got if f.kind == kind
        ]

    def bodies(self) -> list[bytes]:
        return [f.payload for f in self.got if f.kind == FrameType.DATA]


Do = Callable[[Peer], object]
Judge = Callable[[Peer], bool]


def ends(*codes: int) -> Judge:
    """The connection ends, with one of the codes."""

    def judge(peer: Peer) -> bool:
        said = peer.codes(FrameType.GOAWAY)
        return peer.server.end_reason is not None and len(said) == 1 and said[0] in codes

    return judge


def resets(*codes: int) -> Judge:
    """A stream is reset with one of the codes, and the connection goes on."""

    def judge(peer: Peer) -> bool:
        said = peer.codes(FrameType.RST_STREAM)
        peer.ping()
        return bool(said) and set(said) <= set(codes) and pongs(peer)

    return judge


def answers(peer: Peer) -> bool:
    return any(f.kind == FrameType.HEADERS and f.stream == 1 for f in peer.got)


def pongs(peer: Peer) -> bool:
    return Got(FrameType.PING, ACK, 0, PING) in peer.got


def acknowledges(peer: Peer) -> bool:
    return Got(FrameType.SETTINGS, ACK, 0, b"") in peer.got


def greets(peer: Peer) -> bool:
    return peer.got[0].kind == FrameType.SETTINGS and not peer.got[0].flags & ACK


def sends(*sizes: int) -> Judge:
    """DATA frames of these sizes come."""

    def judge(peer: Peer) -> bool:
        return [len(body) for body in peer.bodies()] == list(sizes)

    return judge


def all_of(*steps: Do) -> Do:
    def do(peer: Peer) -> None:
        for step in steps:
            step(peer)

    return do


def then_ping(*steps: Do) -> Do:
    return all_of(*steps, Peer.ping)


def get(*more: tuple[str, str], without: str = "", **change: str) -> Do:
    """A GET with more headers, without one, or with another path."""
    fields = [(n, change.get(n[1:], v)) for n, v in GET if n != without]
    return lambda p: p.headers([*fields, *more])


def after(block: bytes) -> Do:
    """A GET whose block ends with raw bytes."""
    return lambda p: p.headers(after=block)


def before(block: bytes) -> Do:
    """A GET whose block begins with raw bytes."""
    return lambda p: p.headers(before=block)


def opening(*headers: tuple[str, str]) -> Do:
    """A POST whose body is to come."""
    return lambda p: p.headers([*POST, *headers], END_HEADERS)


def raw(kind: int, flags: int, stream: int, payload: bytes) -> Do:
    return lambda p: p.frame(kind, flags, stream, payload)


def cut_block(*cuts: int) -> Do:
    """A GET whose block is cut into HEADERS and CONTINUATION frames."""

    def do(peer: Peer) -> None:
        block = peer.block(GET)
        pieces = [block[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        peer.frame(FrameType.HEADERS, END_STREAM, 1, pieces[0])
        for piece in pieces[1:]:
            last = END_HEADERS if piece is pieces[-1] else 0
            peer.frame(FrameType.CONTINUATION, last, 1, piece)

    return do


def window_of(size: int) -> Do:
    return lambda p: p.settings((4, size))


unfinished = lambda p: p.headers(flags=END_STREAM)  # noqa: E731 (as all steps of a case)
data = lambda p: p.data()  # noqa: E731
data_goes_on = lambda p: p.data(flags=0)  # noqa: E731
open_block = lambda p: p.headers(POST, 0)  # noqa: E731
more = lambda p: p.more()  # noqa: E731
more_to_come = lambda p: p.more(0)  # noqa: E731
whole = lambda p: p.headers()  # noqa: E731
priority = lambda p: p.priority()  # noqa: E731
reset = lambda p: p.reset()  # noqa: E731
opened = opening()
h2spec = b"\x06h2spec"
h2spec_huffman = b"\x84\x9c\x48\xac\xa4"
agent = b"\x0auser-agent"
agent_huffman = b"\x87\xb5\x05\xb1\x61\xcc\x5a\x93"
x_test = b"\x06x-test"
x_test_huffman = b"\x85\xf2\xb2\x4a\x84\xff"

GENERIC: dict[str, list[tuple[str, Do, Judge]]] = {
    "2": [
        ("PRIORITY on an idle stream", then_ping(priority), pongs),
        (
            "WINDOW_UPDATE on a half-closed (remote) stream",
            all_of(window_of(0), whole, lambda p: p.window(1, 1)),
            sends(1),
        ),
        (
            "PRIORITY on a half-closed (remote) stream",
            all_of(window_of(0), whole, priority, lambda p: p.window(1, 1)),
            sends(1),
        ),
        ("RST_STREAM on a half-closed (remote) stream", then_ping(whole, reset), pongs),
        ("PRIORITY on a closed stream", then_ping(whole, priority), pongs),
    ],
    "3.1": [
        ("DATA", all_of(opened, data), answers),
        ("several DATA", all_of(opened, data_goes_on, data), answers),
        (
            "DATA with padding",
            all_of(opened, raw(0, PADDED | END_STREAM, 1, b"\x05test\0\0\0\0\0")),
            answers,
        ),
    ],
    "3.2": [
        ("HEADERS", whole, answers),
        (
            "HEADERS with padding",
            lambda p: p.headers(flags=WHOLE | PADDED, before=b"\x08", after=bytes(8)),
            answers,
        ),
        (
            "HEADERS with priority",
            lambda p: p.headers(flags=WHOLE | PRIORITY, before=b"\0\0\0\0\xff"),
            answers,
        ),
    ],
    "3.3": [
        ("priority 1", all_of(lambda p: p.priority(weight=0), whole), answers),
        ("priority 256", all_of(priority, whole), answers),
        ("a dependency", all_of(lambda p: p.priority(3, 1), whole), answers),
        ("exclusive", all_of(lambda p: p.priority(1, 1 << 31), whole), answers),
        ("of a later stream", all_of(lambda p: p.priority(3), whole), answers),
    ],
    "3.4": [("RST_STREAM", then_ping(opened, reset), pongs)],
    "3.5": [
        (
            "SETTINGS",
            lambda p: p.settings((1, 4096), (2, 1), (3, 100), (4, 65535), (5, 16384), (6, 100)),
            acknowledges,
        )
    ],
    "3.7": [("PING", Peer.ping, pongs)],
    "3.8": [("GOAWAY", then_ping(raw(7, 0, 0, bytes(8) + b"h2spec")), pongs)],
    "3.9": [
        ("WINDOW_UPDATE of the connection", then_ping(lambda p: p.window(0, 1)), pongs),
        ("WINDOW_UPDATE of a stream", all_of(whole, lambda p: p.window(1, 1)), answers),
    ],
    "3.10": [
        ("CONTINUATION", cut_block(5), answers),
        ("several CONTINUATION", cut_block(5, 10), answers),
    ],
    "4": [
        ("GET", whole, answers),
        ("HEAD", lambda p: p.headers([(":method", "HEAD"), *GET[1:]]), answers),
        ("POST", all_of(opened, data), answers),
        (
            "POST with trailers",
            all_of(
                opening(("trailer", "x-test")),
                data_goes_on,
                lambda p: p.headers([("x-test", "ok")]),
            ),
            answers,
        ),
    ],
    "5": [
        ("indexed", after(b"\xba"), answers),
        (
            "incremental, indexed name, Huffman",
            after(b"\x40" + agent_huffman + h2spec_huffman),
            answers,
        ),
        ("incremental, indexed name", after(b"\x40" + agent + h2spec), answers),
        ("incremental, new name", after(b"\x40" + x_test + h2spec), answers),
        (
            "incremental, new name, Huffman",
            after(b"\x40" + x_test_huffman + h2spec_huffman),
            answers,
        ),
        ("not indexed, indexed name", after(b"\0" + agent + h2spec), answers),
        (
            "not indexed, indexed name, Huffman",
            after(b"\0" + agent_huffman + h2spec_huffman),
            answers,
        ),
        ("not indexed, new name", after(b"\0" + x_test + h2spec), answers),
        (
            "not indexed, new name, Huffman",
            after(b"\0" + x_test_huffman + h2spec_huffman),
            answers,
        ),
        ("never indexed, indexed name", after(b"\x10" + agent + h2spec), answers),
        (
            "never indexed, indexed name, Huffman",
            after(b"\x10" + agent_huffman + h2spec_huffman),
            answers,
        ),
        ("never indexed, new name", after(b"\x10" + x_test + h2spec), answers),
        (
            "never indexed, new name, Huffman",
            after(b"\x10" + x_test_huffman + h2spec_huffman),
            answers,
        ),
        ("a table size update", before(b"\x3f\xe1\x1f"), answers),
        ("several table size updates", before(b"\x3f\x61\x3f\xe1\x1f"), answers),
    ],
}

HTTP2: dict[str, list[tuple[str, Do, Judge]]] = {
    "4.1": [
        ("an unknown type", then_ping(raw(0x16, 0, 0, bytes(8))), pongs),
        ("an undefined flag", raw(6, 0x16, 0, PING), pongs),
        ("the reserved bit", raw(6, 0x16, 1 << 31, PING), pongs),
    ],
    "4.2": [
        ("DATA of 2^14 octets", all_of(opened, lambda p: p.data(bytes(16_384))), answers),
        ("DATA over the limit", all_of(opened, lambda p: p.data(bytes(16_385))), ends(SIZE)),
        (
            "HEADERS over the limit",
            lambda p: p.headers([*GET, *((f"x-{i}", "\x01" * 4000) for i in range(5))]),
            ends(SIZE),
        ),
    ],
    "4.3": [
        ("an invalid block", raw(1, WHOLE, 1, b"\x40"), ends(COMPRESSION)),
        ("PRIORITY inside a block", all_of(open_block, priority, more), ends(PROTOCOL)),
        (
            "HEADERS of another stream inside a block",
            all_of(open_block, lambda p: p.headers(stream=3), more),
            ends(PROTOCOL),
        ),
    ],
    "5.1": [
        ("idle: DATA", data, ends(PROTOCOL)),
        ("idle: RST_STREAM", reset, ends(PROTOCOL)),
        ("idle: WINDOW_UPDATE", lambda p: p.window(1, 100), ends(PROTOCOL)),
        ("idle: CONTINUATION", more, ends(PROTOCOL)),
        ("half-closed: DATA", all_of(window_of(0), whole, data), resets(CLOSED)),
        ("half-closed: HEADERS", all_of(window_of(0), whole, whole), resets(CLOSED)),
        ("half-closed: CONTINUATION", all_of(window_of(0), whole, more), ends(PROTOCOL)),
        ("closed by RST_STREAM: DATA", all_of(opened, reset, data), resets(CLOSED)),
        ("closed by RST_STREAM: HEADERS", all_of(opened, reset, whole), ends(CLOSED)),
        ("closed by RST_STREAM: CONTINUATION", all_of(opened, reset, more), ends(PROTOCOL)),
        ("closed: DATA", all_of(whole, data), resets(CLOSED)),
        ("closed: HEADERS", all_of(whole, whole), ends(CLOSED)),
        ("closed: CONTINUATION", all_of(whole, more), ends(PROTOCOL)),
    ],
    "5.1.1": [
        ("an even number", lambda p: p.headers(stream=2), ends(PROTOCOL)),
        (
            "a smaller number",
            all_of(lambda p: p.headers(stream=5), lambda p: p.headers(stream=3)),
            ends(PROTOCOL),
        ),
    ],
    "5.1.2": [
        (
            "more streams than allowed",
            all_of(
                window_of(0), *(lambda p, s=s: p.headers(stream=s) for s in range(1, 203, 2))
            ),
            resets(ErrorCode.REFUSED_STREAM),
        )
    ],
    "5.3.1": [
        (
            "HEADERS that depend on themselves",
            lambda p: p.headers(flags=WHOLE | PRIORITY, before=b"\0\0\0\x01\xff"),
            resets(PROTOCOL),
        ),
        ("PRIORITY that depends on itself", lambda p: p.priority(1, 1), resets(PROTOCOL)),
    ],
    "5.4.1": [
        ("an invalid PING: closed", raw(6, 0, 3, PING), ends(PROTOCOL)),
        ("an invalid PING: GOAWAY", raw(6, 0, 3, PING), ends(PROTOCOL)),
    ],
    "5.5": [
        ("an unknown frame", then_ping(raw(0x16, 0, 0, bytes(8))), pongs),
        (
            "an unknown frame inside a block",
            all_of(unfinished, raw(0x16, 0, 0, bytes(8))),
            ends(PROTOCOL),
        ),
    ],
    "6.1": [
        ("DATA of stream 0", lambda p: p.data(stream=0), ends(PROTOCOL)),
        ("DATA of a half-closed stream", all_of(window_of(0), whole, data), resets(CLOSED)),
        (
            "DATA of invalid padding",
            all_of(
                opening(("content-length", "4")), raw(0, PADDED | END_STREAM, 1, b"\x06Test")
            ),
            ends(PROTOCOL),
        ),
    ],
    "6.2": [
        (
            "PRIORITY after HEADERS without the end",
            all_of(open_block, priority, more),
            ends(PROTOCOL),
        ),
        (
            "HEADERS of another stream after such",
            all_of(open_block, lambda p: p.headers(stream=3), more),
            ends(PROTOCOL),
        ),
        ("HEADERS of stream 0", lambda p: p.headers(stream=0), ends(PROTOCOL)),
        (
            "HEADERS of invalid padding",
            lambda p: p.frame(1, WHOLE | PADDED, 1, bytes([len(b := p.block(GET)) + 2]) + b),
            ends(PROTOCOL),
        ),
    ],
    "6.3": [
        ("PRIORITY of stream 0", lambda p: p.priority(0), ends(PROTOCOL)),
        (
            "PRIORITY of another length",
            all_of(opened, raw(2, 0, 1, b"\x80\0\0\x01")),
            resets(SIZE),
        ),
    ],
    "6.4": [
        ("RST_STREAM of stream 0", lambda p: p.reset(0), ends(PROTOCOL)),
        ("RST_STREAM of an idle stream", reset, ends(PROTOCOL)),
        ("RST_STREAM of another length", all_of(opened, raw(3, 0, 1, bytes(3))), ends(SIZE)),
    ],
    "6.5": [
        ("an ACK with a payload", raw(4, ACK, 0, b"\0"), ends(SIZE)),
        ("SETTINGS of a stream", raw(4, 0, 1, b"\0\x03\0\0\0\x64"), ends(PROTOCOL)),
        ("SETTINGS of another length", raw(4, 0, 0, b"\0\x03\0"), ends(SIZE)),
    ],
    "6.5.2": [
        ("ENABLE_PUSH of 2", lambda p: p.settings((2, 2)), ends(PROTOCOL)),
        ("INITIAL_WINDOW_SIZE over the limit", window_of(1 << 31), ends(FLOW)),
        ("MAX_FRAME_SIZE too small", lambda p: p.settings((5, 16_383)), ends(PROTOCOL)),
        ("MAX_FRAME_SIZE too large", lambda p: p.settings((5, 1 << 24)), ends(PROTOCOL)),
        ("an unknown setting", then_ping(lambda p: p.settings((0xFF, 1))), pongs),
    ],
    "6.5.3": [
        ("one setting twice", all_of(lambda p: p.settings((4, 100), (4, 1)), whole), sends(1)),
        ("SETTINGS without ACK", lambda p: p.settings((2, 0)), acknowledges),
    ],
    "6.7": [
        ("PING", Peer.ping, pongs),
        ("PING with ACK", then_ping(raw(6, ACK, 0, b"invalid\0")), pongs),
        ("PING of a stream", raw(6, 0, 1, bytes(8)), ends(PROTOCOL)),
        ("PING of another length", raw(6, 0, 0, bytes(6)), ends(SIZE)),
    ],
    "6.8": [("GOAWAY of a stream", raw(7, 0, 1, bytes(8)), ends(PROTOCOL))],
    "6.9": [
        ("the connection opened by 0", lambda p: p.window(0, 0), ends(PROTOCOL)),
        ("a stream opened by 0", all_of(opened, lambda p: p.window(1, 0)), resets(PROTOCOL)),
        ("WINDOW_UPDATE of another length", raw(8, 0, 0, b"\0\0\x01"), ends(SIZE)),
    ],
    "6.9.1": [
        ("a window of 1", all_of(window_of(1), whole), sends(1)),
        (
            "the connection opened over the limit",
            all_of(lambda p: p.window(0, (1 << 31) - 1), lambda p: p.window(0, (1 << 31) - 1)),
            ends(FLOW),
        ),
        (
            "a stream opened over the limit",
            all_of(opened, lambda p: p.window(1, (1 << 31) - 1)),
            resets(FLOW),
        ),
    ],
    "6.9.2": [
        ("another window after HEADERS", all_of(window_of(0), whole, window_of(1)), sends(1)),
        (
            "a negative window",
            all_of(window_of(3), whole, window_of(2), lambda p: p.window(1, 2)),
            sends(3, 1),
        ),
        ("a window over the limit", window_of(1 << 31), ends(FLOW)),
    ],
    "6.10": [
        (
            "several CONTINUATION",
            all_of(unfinished, more_to_come, more),
            answers,
        ),
        ("DATA after CONTINUATION", all_of(open_block, more_to_come, data), ends(PROTOCOL)),
        (
            "CONTINUATION of stream 0",
            all_of(unfinished, lambda p: p.more(stream=0)),
            ends(PROTOCOL),
        ),
        ("CONTINUATION after a whole block", all_of(whole, more), ends(PROTOCOL)),
        ("CONTINUATION after the last", all_of(unfinished, more, more), ends(PROTOCOL)),
        ("CONTINUATION after DATA", all_of(open_block, data, more_to_come), ends(PROTOCOL)),
    ],
    "7": [
        (
            "GOAWAY of an unknown code",
            raw(7, 0, 0, struct.pack(">LL", 0, 0xFF)),
            lambda p: p.server.end_reason is not None,
        ),
        (
            "RST_STREAM of an unknown code",
            then_ping(opened, lambda p: p.reset(code=0xFF)),
            pongs,
        ),
    ],
    "8.1": [
        (
            "a second HEADERS that ends nothing",
            all_of(opened, data_goes_on, lambda p: p.headers([("x-test", "ok")], END_HEADERS)),
            resets(PROTOCOL),
        )
    ],
    "8.1.2": [("a name in uppercase", get(("X-TEST", "ok")), resets(PROTOCOL))],
    "8.1.2.1": [
        ("an unknown pseudo-header", get((":test", "ok")), resets(PROTOCOL)),
        ("a pseudo-header of answers", get((":status", "200")), resets(PROTOCOL)),
        (
            "a pseudo-header as trailer",
            all_of(opened, data_goes_on, lambda p: p.headers([(":method", "POST")])),
            resets(PROTOCOL),
        ),
        (
            "a pseudo-header after others",
            lambda p: p.headers([("x-test", "ok"), *GET]),
            resets(PROTOCOL),
        ),
    ],
    "8.1.2.2": [
        ("a header of the connection", get(("connection", "keep-alive")), resets(PROTOCOL)),
        (
            "TE other than trailers",
            get(("trailers", "test"), ("te", "trailers, deflate")),
            resets(PROTOCOL),
        ),
    ],
    "8.1.2.3": [
        ("an empty :path", get(path=""), resets(PROTOCOL)),
        ("no :method", get(without=":method"), resets(PROTOCOL)),
        ("no :scheme", get(without=":scheme"), resets(PROTOCOL)),
        ("no :path", get(without=":path"), resets(PROTOCOL)),
        ("two :method", get((":method", "GET")), resets(PROTOCOL)),
        ("two :scheme", get((":scheme", "http")), resets(PROTOCOL)),
        ("two :path", get((":path", "/")), resets(PROTOCOL)),
    ],
    "8.1.2.6": [
        (
            "a length that is not the body's",
            all_of(opening(("content-length", "1")), data),
            resets(PROTOCOL),
        ),
        (
            "a length that is not the bodies'",
            all_of(opening(("content-length", "6")), data_goes_on, data),
            resets(PROTOCOL),
        ),
    ],
    "8.2": [("PUSH_PROMISE", raw(5, END_HEADERS, 1, b"\0\0\0\x02"), ends(PROTOCOL))],
}

HPACK: dict[str, list[tuple[str, Do, Judge]]] = {
    "2.3.3": [
        ("an indexed field of no index", after(b"\xc6"), ends(COMPRESSION)),
        ("a literal field of no index", after(b"\x7f\x07\0"), ends(COMPRESSION)),
    ],
    "4.2": [("a table size update at the end", after(b"\x21"), ends(COMPRESSION))],
    "5.2": [
        (
            "padding over 7 bits",
            after(b"\0" + x_test_huffman + b"\x84\x49\x50\x9f\xff"),
            ends(COMPRESSION),
        ),
        (
            "padding of zeros",
            after(b"\0" + x_test_huffman + b"\x83\x49\x50\x90"),
            ends(COMPRESSION),
        ),
        (
            "the EOS symbol",
            after(b"\0" + x_test_huffman + b"\x87\x49\x51\xff\xff\xff\xfa\x7f"),
            ends(COMPRESSION),
        ),
    ],
    "6.1": [("index 0", after(b"\x80"), ends(COMPRESSION))],
    "6.3": [("a table size over the limit", before(b"\x3f\xe2\x1f"), ends(COMPRESSION))],
}

CASES = [
    pytest.param(do, judge, id=f"{group} {section}/{number} {title}")
    for group, sections in (("generic", GENERIC), ("http2", HTTP2), ("hpack", HPACK))
    for section, cases in sections.items()
    for number, (title, do, judge) in enumerate(cases, start=1)
]


@pytest.mark.parametrize(("do", "judge"), CASES)
def test_a_client_that_greeted_is_treated_as_the_rfc_says(do: Do, judge: Judge) -> None:
    peer = Peer()
    peer.greet()

    do(peer)

    assert judge(peer), (peer.server.end_reason, peer.got)


@pytest.mark.parametrize(
    ("preface", "judge"),
    [
        pytest.param(PREFACE + SETTINGS, greets, id="generic 1/1 preface"),
        pytest.param(PREFACE + SETTINGS, greets, id="http2 3.5/1 preface"),
        pytest.param(
            b"INVALID CONNECTION PREFACE\r\n\r\n",
            ends(PROTOCOL),
            id="http2 3.5/2 invalid preface",
        ),
    ],
)
def test_a_client_is_met_by_its_first_bytes(preface: bytes, judge: Judge) -> None:
    peer = Peer()

    peer.send(preface)

    assert judge(peer)


def test_no_case_of_h2spec_is_missing() -> None:
    assert len(CASES) + 3 == 147  # of its sources; a run counts 146
