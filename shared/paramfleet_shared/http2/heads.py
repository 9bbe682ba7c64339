"""Header blocks: put together, decoded, judged (RFC 9113, sections 4.3, 6.2 and 8).

A block is judged once: equal blocks of one connection get the same ``Head``.
"""

from typing import NamedTuple

from hpack.exceptions import HPACKError, OversizedHeaderListError

from paramfleet_shared.http2.events import ConnectionFault, ProtocolFault
from paramfleet_shared.http2.frames import ErrorCode, Flag, FrameType, read_u31
from paramfleet_shared.http2.hpack_memo import Header, MemoDecoder

__all__ = ["Block", "BlockReader", "Head", "HeadReader"]

_END_STREAM = int(Flag.END_STREAM)
_END_HEADERS = int(Flag.END_HEADERS)
_PADDED = int(Flag.PADDED)
_PRIORITY = int(Flag.PRIORITY)
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
        self._memo: dict[bytes, tuple[list[Header], Head]] = {}

    def read(self, block: bytes) -> Head:
        """Return what a block says.

        Raises:
            ConnectionFault: if it is longer than the limit.
            ProtocolFault: if it cannot be decoded.
        """
        try:
            headers = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "header list over the limit"
            ) from error
        except (HPACKError, IndexError) as error:
            raise ProtocolFault(repr(error), ErrorCode.COMPRESSION_ERROR) from error
        known = self._memo.get(block)
        if known is not None and known[0] is headers:  # the decoder remembered it too
            return known[1]
        head = _judge(headers, requests=self._requests)
        if len(self._memo) >= _MEMO_ENTRIES:
            self._memo.clear()
        self._memo[block] = (headers, head)
        return head


class Block(NamedTuple):
    """A header block, with what its first frame said."""

    stream_id: int
    fragments: bytes
    end_stream: bool
    depends_on_itself: bool


class BlockReader:
    """Puts blocks together: HEADERS, then CONTINUATION frames with nothing between them.

    Args:
        max_bytes: Longest block, for CVE-2024-27316.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun: Block | None = None
        self._num_continuations = 0

    @property
    def is_open(self) -> bool:
        """Return whether only a CONTINUATION may come now."""
        return self._begun is not None

    def begin(self, flags: int, stream_id: int, payload: memoryview) -> Block | None:
        """Take a HEADERS frame, and return its block if that is whole.

        Raises:
            ProtocolFault: if the frame is malformed.
        """
        if not stream_id:
            raise ProtocolFault("HEADERS of no stream")
        begin, end = 0, len(payload)
        if flags & _PADDED:
            if not end or payload[0] >= end:
                raise ProtocolFault("a frame that is all padding")
            begin, end = 1, end - payload[0]
        depends_on = None
        if flags & _PRIORITY:
            if end - begin < _PRIORITY_BYTES:
                raise ProtocolFault("HEADERS too short", ErrorCode.FRAME_SIZE_ERROR)
            depends_on = read_u31(payload, begin)
            begin += _PRIORITY_BYTES
        block = Block(
            stream_id,
            bytes(payload[begin:end]),
            bool(flags & _END_STREAM),
            depends_on == stream_id,
        )
        if flags & _END_HEADERS:
            return block
        self._begun = block
        self._num_continuations = 0
        return None

    def go_on(
        self, frame_type: int, flags: int, stream_id: int, payload: memoryview
    ) -> Block | None:
        """Take the next frame of an open block, and return the block if it is whole.

        Raises:
            ConnectionFault: if the block gets too long.
            ProtocolFault: if it is another frame.
        """
        block = self._begun
        assert block is not None, "asked before"
        if frame_type != FrameType.CONTINUATION or stream_id != block.stream_id:
            raise ProtocolFault("a frame inside a header block")
        self._num_continuations += 1
        num_bytes = len(block.fragments) + len(payload)
        if num_bytes > self._max_bytes or self._num_continuations > _MAX_CONTINUATIONS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")
        block = block._replace(fragments=block.fragments + payload)
        whole = bool(flags & _END_HEADERS)
        self._begun = None if whole else block
        return block if whole else None


def _judge(fields: list[Header], *, requests: bool) -> Head:
    headers = dict(fields)
    fault = _fault_of_fields(fields)
    num_pseudo = sum(name[:1] == b":" for name in headers)
    trailer_fault = fault or ("a pseudo-header in trailers" if num_pseudo else None)
    fault = fault or _fault_of_pseudo_headers(fields, requests=requests)
    length = None
    if fault is None and b"content-length" in headers:
        length = int(headers[b"content-length"])
    return Head(headers, length, fault, trailer_fault)


def _fault_of_fields(fields: list[Header]) -> str | None:
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


def _fault_of_pseudo_headers(fields: list[Header], *, requests: bool) -> str | None:
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
