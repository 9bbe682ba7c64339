"""A whole stream read: every base, every change, and that they tell the same.

Behind a break it goes on with what can be proven again, so that one look names all breaks.
Memory is bounded: files are mapped, and compared a piece at a time.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paramfleet_shared.deltas.base_writing import temporary_near
from paramfleet_shared.deltas.errors import (
    BaseDamagedError,
    ChangeGapError,
    ChangesUnavailableError,
    StreamReplacedError,
)
from paramfleet_shared.deltas.merging.folding import Folded, fold
from paramfleet_shared.deltas.merging.runs import merged
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, OpenedBase, StreamHead
from paramfleet_shared.deltas.stored.change_files import StoredChange, check_payload
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import change_file, change_number
from paramfleet_shared.errors import FleetError

__all__ = ["MOST_PROBLEMS", "VerifiedStream", "verify_changes", "verify_stream"]

MOST_PROBLEMS = 1000
"""Sentences that are kept; what is found beyond is counted."""


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
        """What is wrong, a sentence each, ``MOST_PROBLEMS`` at most."""
        self.num_problems = 0
        """Those that aren't kept with them."""
        self._last = ""

    def note(self, problem: str) -> None:
        """Add what is wrong, unless it was the last that was added: a break is met twice."""
        if problem == self._last:
            return
        self._last = problem
        self.num_problems += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)


def verify_stream(folder: Path) -> VerifiedStream:
    """Read everything that a stream keeps.

    Each base and each change is proven, and the changes between two bases, applied to the
    older one, must give exactly the newer one. Behind a break the next change begins that the
    one after it proves.

    Raises:
        StreamError: if there is no ``stream.json``, or it breaks a rule of the format.
        OSError: if the system refuses a file without a name.
    """
    head = StreamReader(folder).look()
    found = VerifiedStream(head)
    opened = [base for number in head.bases if (base := _opened(folder, number, found))]
    verify_changes(folder, found, opened)
    return found


def verify_changes(folder: Path, found: VerifiedStream, opened: Sequence[OpenedBase]) -> None:
    """Read all changes of a stream, and compare its bases.

    Args:
        folder: The stream's.
        found: Gets what is found.
        opened: The bases that could be read, oldest first.

    Raises:
        OSError: if the system refuses a file, or one without a name.
    """
    names = StreamDisk().names(folder / found.head.stream)
    known = {number for name in names if (number := change_number(name)) is not None}
    changes = _Changes(folder, found, sorted(known))
    first = min(found.head.bases)
    for base, newer in zip([None, *opened], [*opened, None], strict=True):
        begin = first if base is None else base.number
        until = found.head.last if newer is None else newer.number
        if changes.is_over or begin >= until:
            continue
        if base is None or newer is None:
            for _ in changes.read(begin, until):
                pass
            continue
        folded = fold(base, changes.read(begin, until), temporary_near(folder))
        difference = "" if changes.is_broken else _difference(folded, newer)
        if difference:
            found.note(
                f"base {newer.number} of stream {base.stream} isn't base {base.number} with "
                f"the changes after it: {difference}"
            )


def _opened(folder: Path, number: int, found: VerifiedStream) -> OpenedBase | None:
    """Return a base; None if it can't be read, which is noted."""
    try:
        base = StreamReader(folder).base(number)
    except FleetError as error:
        found.note(str(error))
        return None
    found.bases += 1
    found.rows += sum(len(table.ids) for table in base.tables.values())
    return base


class _Changes:
    """The changes of a stream, read up to each break and behind it.

    Args:
        folder: The stream's.
        found: Gets what is found.
        known: The numbers of changes that have a file, sorted.
    """

    def __init__(self, folder: Path, found: VerifiedStream, known: Sequence[int]) -> None:
        self._folder = folder
        self._found = found
        self._known = known
        self.is_broken = False
        """Whether something was wrong where was read last."""
        self.is_over = False
        """Whether nothing behind that can be read."""

    def read(self, after: int, until: int) -> Iterator[Change]:
        """Yield changes up to the first break, mapped; what is behind it is proven alone."""
        self.is_broken, place = False, after
        while place < until and not self.is_over:
            reader = StreamReader(self._folder)
            try:
                self._check_stream(reader)
                for number, stored, _ in reader.stored_changes(place, until, are_mapped=True):
                    place = number
                    self._take(number, stored)
                    if not self.is_broken:
                        yield stored.change
            except FleetError as error:
                place = self._behind(error, place, until)

    def _take(self, number: int, stored: StoredChange) -> None:
        self._found.changes += 1
        self._found.rows += sum(len(table.ids) for table in stored.change.tables.values())
        try:
            check_payload(stored)
        except ValueError as error:
            path = change_file(self._folder, self._found.head.stream, number)
            self._found.note(f"{path}: {error}")

    def _behind(self, error: FleetError, place: int, until: int) -> int:
        """Note a break; return the place behind it from which on changes can be read again.

        Args:
            error: What is wrong.
            place: Behind which it was met: the next change is broken, or the one that proves
                it.
            until: Where reading ends.
        """
        self.is_broken = True
        self._found.note(str(error))
        head = self._found.head
        is_of_all = isinstance(error, BaseDamagedError) and error.facts["number"] == head.base
        if is_of_all or isinstance(error, StreamReplacedError | ChangesUnavailableError):
            self.is_over = True
            return place
        missing = error.facts["number"] if isinstance(error, ChangeGapError) else 0
        if missing != place + 1:
            return place + 1
        there = next((each for each in self._known if each > missing), until + 1)
        last = min(there - 1, until)
        if last > missing:
            rest = (
                f"change {last}" if last == missing + 1 else f"changes {missing + 1} to {last}"
            )
            self._found.note(f"{self._folder}: {rest} of stream {head.stream}: missing, too")
        return last

    def _check_stream(self, reader: StreamReader) -> None:
        """Pass if the folder has the stream that is verified.

        Raises:
            StreamReplacedError: if it has another one now.
            FleetError: if that can't be read.
        """
        now, stream = reader.look().stream, self._found.head.stream
        if now != stream:
            raise StreamReplacedError(path=str(self._folder), stream=stream, found=now)


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
