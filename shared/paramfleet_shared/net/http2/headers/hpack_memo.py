"""Header blocks, encoded and decoded once (HPACK, RFC 7541).

A peer of our own kind never touches the dynamic table: its blocks are made of
static-table entries and plain literals, so that equal bytes mean equal headers
for ever. Anything else (curl, nghttp2, grpc) goes through ``hpack``; such a
block may be remembered only while the dynamic table is unchanged.

What means the same for ever is remembered by the process: the first call of a connection is
nearly always one that another connection has made.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from hpack import Decoder
from hpack.table import HeaderTable
from typing_extensions import override

from paramfleet_shared.net.http2.frames import DEFAULT_HEADER_TABLE_BYTES

__all__ = ["Header", "MemoDecoder", "StaticEncoder"]

Header = tuple[bytes, bytes]
"""Name and value."""

_MEMO_ENTRIES = 512
_MEMO_BLOCK_BYTES = 1024  # longer ones are rare, and would let a peer fill the memory
_ENTRY_OVERHEAD_BYTES = 32  # RFC 7541, section 4.1
_SIZE_ZERO = b"\x20"  # dynamic table size update to 0

_STATIC: list[Header] = [
    (bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE
]
_INDEX_OF_FIELD = {header: i for i, header in reversed(list(enumerate(_STATIC, start=1)))}
_INDEX_OF_NAME = {header[0]: i for i, header in reversed(list(enumerate(_STATIC, start=1)))}


class StaticEncoder:
    """Encodes with the static table and plain literals only."""

    def __init__(self) -> None:
        self._must_announce_size = False

    def limit_table(self, num_bytes: int) -> None:
        """Take note of the most that the peer keeps in a dynamic table.

        Below the default that must be acknowledged in the next block (RFC 7541,
        section 4.2), though we use none of it.
        """
        self._must_announce_size |= num_bytes < DEFAULT_HEADER_TABLE_BYTES

    def encode(self, headers: Iterable[Header]) -> bytes:
        """Return the block for ``headers``; it means the same in every connection."""
        return b"".join([_encode_field(name, value) for name, value in headers])

    def opened(self, block: bytes) -> bytes:
        """Return a block as it must be sent now; call it once for each that is sent."""
        if not self._must_announce_size:
            return block
        self._must_announce_size = False
        return _SIZE_ZERO + block


class MemoDecoder(Decoder):
    """Decodes a block once, and answers equal blocks from memory."""

    def __init__(self) -> None:
        super().__init__()
        self.header_table = self._table = _CountedTable()
        self._memo: dict[bytes, tuple[int | None, Sequence[Any]]] = {}

    @property
    def generation(self) -> int:
        """Return how often the dynamic table has changed."""
        return self._table.generation

    def memory_of(self, block: bytes) -> tuple[int | None, Sequence[Any]] | None:
        """Return the headers of a block that was decoded, if they are remembered.

        With them comes the generation that they hold in; None: in every one.
        """
        return self._memo.get(block)

    @override
    def decode(self, data: bytes, raw: bool = False) -> Sequence[Any]:
        """Return the headers of a block, pairs of bytes; a tuple if they hold for ever."""
        table = self._table
        if self.header_table_size > self.max_allowed_table_size:  # it must shrink first
            return list(super().decode(data, raw))
        known = self._memo.get(data)
        if known is not None and known[0] in {None, table.generation}:
            return known[1]
        generation = None
        is_short = len(data) <= _MEMO_BLOCK_BYTES
        headers: Sequence[Any] | None = (
            _known_static(data) if is_short else _decode_static(data)
        )
        if headers is None or _size_of(headers) > self.max_header_list_size:
            generation = table.generation
            headers = list(super().decode(data, raw))
            if generation != table.generation:
                return headers
        if is_short:
            if len(self._memo) >= _MEMO_ENTRIES:
                self._memo.clear()
            self._memo[data] = (generation, headers)
        return headers

    @override
    def _update_encoding_context(self, data: bytes | memoryview) -> int:
        self._table.generation += 1
        return super()._update_encoding_context(data)


class _CountedTable(HeaderTable):
    """A dynamic table that counts its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = 0

    @override
    def add(self, name: bytes, value: bytes) -> None:
        self.generation += 1
        super().add(name, value)


def _size_of(headers: Sequence[Header]) -> int:
    return sum(len(name) + len(value) + _ENTRY_OVERHEAD_BYTES for name, value in headers)


@lru_cache(_MEMO_ENTRIES)
def _encode_field(name: bytes, value: bytes) -> bytes:
    index = _INDEX_OF_FIELD.get((name, value))
    if index is not None:
        return bytes((0x80 | index,))
    index = _INDEX_OF_NAME.get(name)
    head = b"\0" + _encode_length(name) if index is None else _encode_integer(index, prefix=4)
    return head + _encode_length(value)


def _encode_length(text: bytes) -> bytes:
    return _encode_integer(len(text), prefix=7) + text


def _encode_integer(number: int, *, prefix: int) -> bytes:
    """RFC 7541, section 5.1, with all bits above the prefix zero."""
    limit = (1 << prefix) - 1
    if number < limit:
        return bytes((number,))
    encoded = bytearray((limit,))
    number -= limit
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _decode_static(block: bytes) -> tuple[Header, ...] | None:
    """Return the headers, or None if the block needs the dynamic table or Huffman codes."""
    headers: list[Header] = []
    position, end = 0, len(block)
    try:
        while position < end:
            first = block[position]
            position += 1
            if first & 0x80:
                if not 0x80 < first <= 0x80 + len(_STATIC):
                    return None
                headers.append(_STATIC[first - 0x81])
                continue
            if first >= 0x20:  # incremental indexing, or a table size update
                return None
            name, position = _decode_name(block, position, first & 0x0F)
            value, position = _decode_text(block, position)
            headers.append((name, value))
    except (IndexError, _NotPlainError):
        return None
    return tuple(headers)


_known_static = lru_cache(_MEMO_ENTRIES)(_decode_static)


class _NotPlainError(Exception):
    """The block is for the full decoder; never leaves this module."""


def _decode_name(block: bytes, position: int, index: int) -> tuple[bytes, int]:
    if index == 0:
        return _decode_text(block, position)
    if index == 15:
        index += block[position]
        position += 1
    return _STATIC[index - 1][0], position


def _decode_text(block: bytes, position: int) -> tuple[bytes, int]:
    length = block[position]
    end = position + 1 + length
    if length >= 127 or end > len(block):  # Huffman flag, a longer length, or cut short
        raise _NotPlainError
    return block[position + 1 : end], end
