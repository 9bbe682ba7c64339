"""What a tier's files say of themselves: slots of a fixed size, with a checksum.

A slot holds facts as JSON. The page file has two of them, written in turn, so that one of them
is whole whenever the other is torn.
"""

import json
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paramfleet_shared.tables.disk.kernels.pages import WORD_BYTES, Form
from paramfleet_shared.tables.disk.pages.geometry import Geometry, page_bytes_for, rows_in
from paramfleet_shared.tables.rows.layout import RowLayout

__all__ = ["FORMAT", "SLOT_BYTES", "TierState", "columns_of", "pack_slot", "unpack_slot"]

FORMAT = 1
"""Of the files; another number is another format."""

SLOT_BYTES = 8192

_START = struct.Struct("<8sII")
"""Magic, bytes of the facts, their checksum."""


def pack_slot(magic: bytes, facts: dict[str, Any]) -> bytes:
    """Return a slot.

    Raises:
        ValueError: if the facts don't fit.
    """
    body = json.dumps(facts, separators=(",", ":")).encode()
    start = _START.pack(magic, len(body), zlib.crc32(body))
    if len(start) + len(body) > SLOT_BYTES:
        message = f"{len(body)} bytes of facts: too many columns, or too long names"
        raise ValueError(message)
    return (start + body).ljust(SLOT_BYTES, b"\0")


def unpack_slot(magic: bytes, slot: bytes) -> dict[str, Any] | None:
    """Return the facts of a slot; None if it isn't whole, or another file's."""
    if len(slot) < _START.size:
        return None
    found, size, checksum = _START.unpack_from(slot)
    body = slot[_START.size : _START.size + size]
    if found != magic or len(body) != size or zlib.crc32(body) != checksum:
        return None
    facts: dict[str, Any] = json.loads(body)
    return facts


def columns_of(layout: RowLayout) -> list[list[Any]]:
    """Return the named columns of rows, as a slot holds them: name, type, numbers."""
    return [[each.name, each.dtype.name, each.width] for each in layout.columns]


@dataclass(frozen=True, slots=True)
class TierState:
    """What a batch of pages leaves behind."""

    columns: list[list[Any]]
    row_bytes: int
    page_bytes: int
    salt: int
    """Of the hash and of checksums; also what tells this tier's files from another's."""
    batch: int = 0
    """Number of the last one."""
    groups: int = 1
    pages: int = 2
    rows: int = 0
    overflow_pages: int = 0
    """As many as there are places for."""
    merged: int = 0
    """All segments of the log up to this number are in the pages."""
    format: int = FORMAT

    @classmethod
    def new(cls, layout: RowLayout, salt: int) -> "TierState":
        """Return that of no rows."""
        page_bytes = page_bytes_for(layout.row_bytes)
        return cls(columns_of(layout), layout.row_bytes, page_bytes, salt)

    @property
    def form(self) -> Form:
        """Return what all pages have in common."""
        holds = rows_in(self.page_bytes, self.row_bytes)
        return Form(
            self.page_bytes // WORD_BYTES, holds, self.row_bytes // 4, np.uint64(self.salt)
        )

    @property
    def geometry(self) -> Geometry:
        """Return which pages there are."""
        return Geometry(self.groups, self.pages)

    def facts(self) -> dict[str, Any]:
        """Return it as a slot holds it."""
        return asdict(self)
