"""A whole stream read: every base, every change, and that they tell the same.

Memory is bounded: files are mapped, and compared a piece at a time.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from paramfleet_shared.deltas.base_writing import temporary_near
from paramfleet_shared.deltas.merging.folding import Folded, fold
from paramfleet_shared.deltas.merging.runs import merged
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, OpenedBase, StreamHead
from paramfleet_shared.deltas.stored.change_files import check_payload
from paramfleet_shared.deltas.stored.head import change_file
from paramfleet_shared.errors import FleetError

__all__ = ["VerifiedStream", "verify_stream"]


class VerifiedStream:
    """What was found in a stream.

    Args:
        head: What ``stream.json`` says.
    """

    def __init__(self, head: StreamHead) -> None:
        self.head = head
        self.bases = 0
        """How many are whole."""
        self.changes = 0
        """How many are proven."""
        self.rows = 0
        """Of all bases and changes that were read."""
        self.problems: list[str] = []
        """What is wrong, a sentence each."""


def verify_stream(folder: Path) -> VerifiedStream:
    """Read everything that a stream keeps.

    Each base and each change is proven, and the changes between two bases, applied to the
    older one, must give exactly the newer one.

    Raises:
        StreamError: if there is no ``stream.json``, or it breaks a rule of the format.
        OSError: if the system refuses a file without a name.
    """
    head = StreamReader(folder).look()
    found = VerifiedStream(head)
    opened = [base for number in head.bases if (base := _opened(folder, number, found))]
    for at, base in enumerate(opened):
        newer = opened[at + 1] if at + 1 < len(opened) else None
        try:
            _verify_behind(folder, base, newer, found)
        except FleetError as error:
            found.problems.append(str(error))
    return found


def _opened(folder: Path, number: int, found: VerifiedStream) -> OpenedBase | None:
    """Return a base; None if it can't be read, which is noted."""
    try:
        base = StreamReader(folder).base(number)
    except FleetError as error:
        found.problems.append(str(error))
        return None
    found.bases += 1
    found.rows += sum(len(table.ids) for table in base.tables.values())
    return base


def _verify_behind(
    folder: Path, base: OpenedBase, newer: OpenedBase | None, found: VerifiedStream
) -> None:
    """Read the changes from one base to the next, or to the newest.

    Raises:
        FleetError: as ``StreamReader.changes``.
        OSError: if the system refuses a file without a name.
    """
    reader, stream = StreamReader(folder), base.stream
    until = found.head.last if newer is None else newer.number

    def mapped() -> Iterator[Change]:
        for number, stored, _ in reader.stored_changes(base.number, until, are_mapped=True):
            found.changes += 1
            found.rows += sum(len(table.ids) for table in stored.change.tables.values())
            try:
                check_payload(stored)
            except ValueError as error:
                path = change_file(folder, stream, number)
                found.problems.append(f"{path}: {error}")
            yield stored.change

    if newer is None:
        for _ in mapped():
            pass
        return
    difference = _difference(fold(base, mapped(), temporary_near(folder)), newer)
    if difference:
        found.problems.append(
            f"base {newer.number} of stream {stream} isn't base {base.number} with the changes "
            f"behind it: {difference}"
        )


def _difference(folded: Folded, base: OpenedBase) -> str:
    """Return where a base differs from a state; empty if it doesn't."""
    if folded.tables.keys() != base.tables.keys() or folded.dense.keys() != base.dense.keys():
        return "it has other tables or parameters"
    for name, values in folded.dense.items():
        if values.tobytes() != base.dense[name].tobytes():
            return f"parameter {name!r} has other values"
    for name, runs in folded.tables.items():
        table, at = base.tables[name], 0
        for piece in merged(runs, table.table.dim):
            ids = table.ids[at : at + len(piece.ids)]
            if not np.array_equal(ids, piece.ids):
                return f"table {name!r} has other ids"
            rows = table.rows[at : at + len(piece.ids)]
            differs = (rows.view(np.uint32) != piece.rows.view(np.uint32)).any(axis=1)
            if differs.any():
                return f"table {name!r} has another row of id {ids[int(differs.argmax())]}"
            at += len(piece.ids)
        if at != len(table.ids):
            return f"table {name!r} has more ids"
    return ""
