"""Header blocks: put together, decoded, judged (RFC 9113, sections 4.3, 6.2 and 8).

A block is judged once: equal blocks of one connection get the same ``Head``, and of all
connections of a process, if they leave HPACK's dynamic table alone.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hpack.exceptions import HPACKError, OversizedHeaderListError

from paramfleet_shared.net.http2.events import ConnectionFault, ProtocolFault
from paramfleet_shared.net.http2.frames import ErrorCode, Flag, FrameType, read_u31
from paramfleet_shared.net.http2.headers.hpack_memo import Header, MemoDecoder

__all__ = ["BlockReader", "Head", "HeadReader"]

_END_STREAM = int(Flag.END_STREAM)
_END_HEADERS = int(Flag.END_HEADERS)
_PADDED = int(Flag.PADDED)
_PRIORITY = int(Flag.PRIORITY)
_PADDED_OR_PRIORITY = _PADDED | _PRIORITY
_PRIORITY_BYTES = 5
_MAX_CONTINUATIONS = 64
_MEMO_ENTRIES = 512
_REQUEST_FIELDS = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUEST_DEMANDS = (b":method", b":scheme", b":path")
_RESPONSE_FIELDS = frozenset({b":status"})
_OF_ONE_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME_BYTES = frozenset(range(0x21, 0x7F)) - frozenset(range(ord("A"), ord("Z") + 1))
_NOT_IN_VALUES = frozenset(b"\0\r\n")
_MAX_DIGITS = 18


class Head(NamedTuple):
    """A decoded header block; shared between equal blocks, never to be changed."""

    headers: dict[bytes, bytes]
    length: int | None
    """Its content-length."""
    fault: str | None
    """Why the block may not start a request or an answer; None if it may."""
    trailer_fault: str | None
    """Why the block may not end one; None if it may."""


class HeadReader:
    """Decodes and judges the blocks of one connection, in their order.

    Args:
        requests: Whether blocks are those of requests, or of answers.
        max_list_bytes: Most bytes of a decoded block, counted as RFC 7541 does.
    """

    def __init__(self, *, requests: bool, max_list_bytes: int) -> None:
        self._requests = requests
        self._decoder = MemoDecoder()
        self._decoder.max_header_list_size = max_list_bytes
        self._memo: dict[bytes, tuple[int | None, Head]] = {}

    def read(self, block: bytes) -> Head:
        """Return what a block says.

        Raises:
            ConnectionFault: if it is longer than the limit.
            ProtocolFault: if it cannot be decoded.
        """
        known = self._memo.get(block)
        if known is not None and (known[0] is None or known[0] == self._decoder.generation):
            return known[1]
        try:
            headers = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "header list over the limit"
            ) from error
        except (HPACKError, IndexError) as error:
            raise ProtocolFault(repr(error), ErrorCode.COMPRESSION_ERROR) from error
        remembered = self._decoder.memory_of(block)
        if remembered is None:
            return _judge(headers, requests=self._requests)
        generation = remembered[0]
        judge = _judge_known if generation is None else _judge
        head = judge(headers, requests=self._requests)
        if len(self._memo) >= _MEMO_ENTRIES:
            self._memo.clear()
        self._memo[block] = (generation, head)
        return head


class BlockReader:
    """Puts blocks together: HEADERS, then CONTINUATION frames with nothing between them.

    Its attributes are those of the block that has come last.

    Args:
        max_bytes: Longest block, for CVE-2024-27316.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_continuations = 0
        self.is_open = False
        """Whether only a CONTINUATION may come now."""
        self.stream_id = 0
        self.fragments = b""
        self.end_stream = False
        self.depends_on_itself = False

    def begin(self, flags: int, stream_id: int, payload: memoryview) -> bool:
        """Take a HEADERS frame, and return whether the block is whole.

        Raises:
            ProtocolFault: if the frame is malformed.
        """
        if not stream_id:
            raise ProtocolFault("HEADERS of no stream")
        self.stream_id = stream_id
        self.end_stream = bool(flags & _END_STREAM)
        self.depends_on_itself = False
        if flags & _PADDED_OR_PRIORITY:
            payload = self._strip(flags, payload)
        self.fragments = bytes(payload)
        self.is_open = not flags & _END_HEADERS
        self._num_continuations = 0
        return not self.is_open

    def go_on(self, frame_type: int, flags: int, stream_id: int, payload: memoryview) -> bool:
        """Take the next frame of an open block, and return whether it is whole now.

        Raises:
            ConnectionFault: if the block gets too long.
            ProtocolFault: if it is another frame.
        """
        if frame_type != FrameType.CONTINUATION or stream_id != self.stream_id:
            raise ProtocolFault("a frame inside a header block")
        self._num_continuations += 1
        self.fragments += payload
        if (
            len(self.fragments) > self._max_bytes
            or self._num_continuations > _MAX_CONTINUATIONS
        ):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")
        self.is_open = not flags & _END_HEADERS
        return not self.is_open

    def _strip(self, flags: int, payload: memoryview) -> memoryview:
        """Take padding and priority off.

        Raises:
            ProtocolFault: if they are longer than the frame.
        """
        if flags & _PADDED:
            if not payload or payload[0] >= len(payload):
                raise ProtocolFault("a frame that is all padding")
            payload = payload[1 : len(payload) - payload[0]]
        if flags & _PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise ProtocolFault("HEADERS too short", ErrorCode.FRAME_SIZE_ERROR)
            self.depends_on_itself = read_u31(payload) == self.stream_id
            payload = payload[_PRIORITY_BYTES:]
        return payload


def _judge(fields: Sequence[Header], *, requests: bool) -> Head:
    headers = dict(fields)
    fault = _fault_of_fields(fields)
    num_pseudo = sum(name[:1] == b":" for name in headers)
    trailer_fault = fault or ("a pseudo-header in trailers" if num_pseudo else None)
    fault = fault or _fault_of_pseudo_headers(fields, requests=requests)
    length = None
    if fault is None and b"content-length" in headers:
        length = int(headers[b"content-length"])
    return Head(headers, length, fault, trailer_fault)


_judge_known = lru_cache(_MEMO_ENTRIES)(_judge)


def _fault_of_fields(fields: Sequence[Header]) -> str | None:
    """Apply the rules about each field (RFC 9113, section 8.2)."""
    lengths = set()
    for name, value in fields:
        token = name[1:] if name[:1] == b":" else name
        if not token or not _NAME_BYTES.issuperset(token):
            return "a header name that is none"
        if not _NOT_IN_VALUES.isdisjoint(value) or value != value.strip(b" \t"):
            return "a header value that is none"
        if name in _OF_ONE_HOP or (name == b"te" and value != b"trailers"):
            return "a header of HTTP/1.1"
        if name == b"content-length":
            lengths.add(value)
            if not value.isdigit() or len(value) > _MAX_DIGITS or len(lengths) > 1:
                return "a content-length that is none"
    return None


def _fault_of_pseudo_headers(fields: Sequence[Header], *, requests: bool) -> str | None:
    """Apply the rules about pseudo-headers (RFC 9113, section 8.3)."""
    allowed = _REQUEST_FIELDS if requests else _RESPONSE_FIELDS
    found: dict[bytes, bytes] = {}
    regular = False
    for name, value in fields:
        if name[:1] != b":":
            regular = True
            continue
        if regular:
            return "a pseudo-header after other headers"
        if name in found or name not in allowed:
            return "a pseudo-header that may not be there"
        found[name] = value
    if requests:
        return None if all(map(found.get, _REQUEST_DEMANDS)) else "a missing pseudo-header"
    status = found.get(b":status", b"")
    return None if len(status) == 3 and status.isdigit() else "no status"
