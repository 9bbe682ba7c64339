"""``StreamWriter``: publishes bases and changes of a model to a folder."""

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.base_writing import BasePlace, temporary_near, write_base
from paramfleet_shared.deltas.chain import Link
from paramfleet_shared.deltas.checking import (
    checked_change,
    checked_moment,
    checked_parameters,
    checked_piece,
)
from paramfleet_shared.deltas.compaction import merge_base, with_base
from paramfleet_shared.deltas.errors import OtherWriterError, StreamError
from paramfleet_shared.deltas.merging.row_spool import SPOOL_BYTES, RowSpool
from paramfleet_shared.deltas.publishing import change_head
from paramfleet_shared.deltas.records import Change, StreamHead, StreamTable
from paramfleet_shared.deltas.retention import (
    remove_drafts,
    remove_former,
    remove_stream,
    remove_unkept,
    remove_unnamed,
)
from paramfleet_shared.deltas.stored.change_files import put_change
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import BASES_LOCK, HEAD, change_file, read_head
from paramfleet_shared.deltas.stored.schema import StreamSchema
from paramfleet_shared.errors import FleetError
from paramfleet_shared.system.clock import Clock

__all__ = ["StreamWriter"]

log = logging.getLogger(__name__)

_LEAST_SPOOL_BYTES = 1 << 20
"""Of a table's rows in memory, however many tables there are."""


class StreamWriter:
    """Writes one stream after the other; readers see each publication wholly or not at all.

    All calls block for files. Threads may share it: ``compact`` merges beside ``publish``.
    What a call that raised ``OSError`` was to publish may be there or not; publish it again,
    since rows are whole and nothing is changed by the same rows once more.

    Args:
        folder: Where streams go: a path of this machine, or an address. It is made.
        clock: The time that waits for other processes are bounded by.
        keep_bases: How many bases of a stream are kept, with the changes behind the oldest.
        disk: What writes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock,
        keep_bases: int = 2,
        disk: StreamDisk | None = None,
    ) -> None:
        self.folder = folder
        self.writer = secrets.token_hex(16)
        self._clock = clock
        self._keep_bases = max(1, keep_bases)
        self._disk = StreamDisk() if disk is None else disk
        self._schema = StreamSchema({}, {})
        self._head: StreamHead | None = None
        """What this writer knows to be published; None before a stream is begun."""
        self._is_behind = False
        """Whether the newest moment was before one that was published."""
        self._publishing, self._compacting = Lock(), Lock()

    def begin(
        self,
        tables: Sequence[StreamTable],
        rows: Iterable[tuple[str, NDArray[np.int64], NDArray[np.float32]]],
        dense: Mapping[str, NDArray[np.float32]],
        *,
        moment: float,
    ) -> None:
        """Begin another stream, whose base 0 is this state.

        Rows are sorted on the disk: memory holds some of them at a time.

        Args:
            tables: All sparse tables.
            rows: Pieces in any order: a table's name, ids int64 [n] and rows float32 [n, D]. Of
                an id that comes more than once the last row counts.
            dense: All dense parameters by name.
            moment: Seconds since 1970: all that pservers had applied until then is in it.

        Raises:
            StreamChangeError: if a table comes twice, or a piece or a parameter isn't as said.
            StreamError: if ``stream.json`` of the folder can't be read.
            OtherWriterError: if another writer has begun a stream meanwhile.
            StreamBusyError: if another process holds the folder's lock for long.
            OSError: if the system refuses.
        """
        with self._publishing:
            before, moment = read_head(self.folder), checked_moment(self.folder, moment)
            stream = secrets.token_hex(16)
            try:
                digest = self._write_first(stream, tables, rows, dense, moment)
            except BaseException:
                with suppress(OSError):
                    remove_stream(self.folder / stream, self._disk)
                raise
            head = StreamHead(
                stream=stream,
                last=0,
                digest=digest,
                moment=moment,
                writer=self.writer,
                bases={0: digest},
            )

            def decide(found: StreamHead | None) -> StreamHead:
                if found is not None and not _is_same(found, before):
                    self._refuse(found.writer)
                remove_drafts(self.folder, self._disk)
                return head

            self._head = None
            self._schema = _schema_of(tables, dense)
            try:
                self._head = change_head(self.folder, self._disk, self._clock, decide)
            except BaseException as error:
                with suppress(FleetError, OSError):
                    is_refused = isinstance(error, FleetError)
                    remove_unnamed(self.folder, stream, self._disk, is_refused=is_refused)
                raise
            kept = {stream} if before is None else {stream, before.stream}
            remove_former(self.folder, kept, self._disk)

    def publish(self, change: Change) -> int:
        """Publish a change; return its number.

        Ids need no order; of an id that comes more than once the last row counts.

        Raises:
            StreamChangeError: if it can't be a part of the stream: an unknown table or
                parameter, another shape or dtype, values that aren't finite, or an id that has
                a row and is removed.
            StreamError: if no stream is begun, or ``stream.json`` can't be read.
            OtherWriterError: if another writer has the folder.
            StreamBusyError: if another process holds the folder's lock for long.
            OSError: if the system refuses.
        """
        with self._publishing:
            head = self._known()
            checked = checked_change(self.folder, change, self._schema)
            number = head.last + 1
            link = Link(head.stream, number, head.digest)
            path = change_file(self.folder, head.stream, number)
            with self._disk.creating(path) as file:
                written = put_change(file, checked, link, self._schema)
            self._publish(last=number, digest=written.sha256, moment=checked.moment)
            return number

    def touch(self, moment: float) -> None:
        """Say that nothing has changed until a moment.

        Raises:
            StreamChangeError: if it is no moment.
            StreamError: if no stream is begun, or ``stream.json`` can't be read.
            OtherWriterError: if another writer has the folder.
            StreamBusyError: if another process holds the folder's lock for long.
            OSError: if the system refuses.
        """
        with self._publishing:
            head, moment = self._known(), checked_moment(self.folder, moment)
            self._publish(last=head.last, digest=head.digest, moment=moment)

    def compact(self) -> int | None:
        """Make a base of what is published, and remove what retention lets go.

        Publications go on meanwhile. Rows are merged file to file, in bounded memory.

        Returns:
            The number of the new base; None if the newest change has one, or another stream
            was begun meanwhile.

        Raises:
            StreamError: if no stream is begun, or ``stream.json`` can't be read.
            OtherWriterError: if another writer has the folder.
            StreamBusyError: if another process makes a base, or holds the lock for long.
            FleetError: as ``StreamReader.base`` and ``StreamReader.changes``.
            OSError: if the system refuses.
        """
        lock = self._disk.locked(self.folder / BASES_LOCK, self._clock)
        with self._compacting, lock:
            with self._publishing:
                head = self._known()
            if head.base == head.last:
                return None
            sha256 = merge_base(self.folder, head, self._disk)

            def decide(found: StreamHead | None) -> StreamHead:
                return with_base(self._own(found), head.last, sha256, self._keep_bases)

            with self._publishing:
                if self._known().stream != head.stream:
                    return None
                self._head = change_head(self.folder, self._disk, self._clock, decide)
            remove_unkept(self.folder, self._head, self._disk)
            return head.last

    def _write_first(
        self,
        stream: str,
        tables: Sequence[StreamTable],
        rows: Iterable[tuple[str, NDArray[np.int64], NDArray[np.float32]]],
        dense: Mapping[str, NDArray[np.float32]],
        moment: float,
    ) -> str:
        """Write base 0 of a stream; return the SHA-256 of its manifest.

        Raises:
            StreamChangeError: as ``begin``.
            OSError: if the system refuses.
        """
        schema = _schema_of(tables, dense)
        checked = checked_parameters(self.folder, tables, dense, schema)
        self._disk.make_folder(self.folder)
        temporary = temporary_near(self.folder)
        share = max(_LEAST_SPOOL_BYTES, SPOOL_BYTES // max(1, len(tables)))
        spools = {each.name: RowSpool(each.dim, temporary, most_bytes=share) for each in tables}
        for name, ids, values in rows:
            piece = checked_piece(self.folder, schema, name, ids, values)
            spools[name].add(*piece)
        runs = [(each, spools[each.name].runs()) for each in tables]
        place = BasePlace(stream, 0, moment, "")
        return write_base(self.folder, place, runs, checked, self._disk)

    def _publish(self, *, last: int, digest: str, moment: float) -> None:
        """Let readers see what is written; no moment is before one that was published.

        That the clock was put back is logged once, until it is where it was.

        Raises:
            StreamError: as ``publish``.
            OtherWriterError: as ``publish``.
            StreamBusyError: as ``publish``.
            OSError: if the system refuses.
        """

        def decide(found: StreamHead | None) -> StreamHead:
            own = self._own(found)
            self._note_moment(moment, own.moment)
            return replace(own, last=last, digest=digest, moment=max(moment, own.moment))

        self._head = change_head(self.folder, self._disk, self._clock, decide)

    def _note_moment(self, moment: float, published: float) -> None:
        """Log if a moment is before one that was published."""
        is_behind = moment < published
        if is_behind and not self._is_behind:
            facts = {"folder": str(self.folder), "moment": moment, "published": published}
            log.warning("deltas.moment_before_the_last", extra=facts)
        self._is_behind = is_behind

    def _known(self) -> StreamHead:
        """Return what is published, if this is the folder's writer still.

        Raises:
            StreamError: if no stream is begun, or ``stream.json`` can't be read.
            OtherWriterError: if another writer has the folder.
        """
        self._head = self._own(read_head(self.folder))
        return self._head

    def _own(self, found: StreamHead | None) -> StreamHead:
        """Return what is published, given what ``stream.json`` says.

        That may be one publication further than this writer knows: the system can refuse a
        call that was done. Bases may be others: commands make and remove them, too.

        Raises:
            StreamError: if no stream is begun, or the file is gone.
            OtherWriterError: if another writer has the folder.
        """
        if self._head is None:
            rule = "no stream is begun: begin one, also after a begin that failed"
            raise StreamError(path=str(self.folder / HEAD), rule=rule)
        if found is None:
            rule = "was removed, and so may be what it names: begin another stream"
            raise StreamError(path=str(self.folder / HEAD), rule=rule)
        if (found.writer, found.stream) != (self.writer, self._head.stream):
            self._refuse(found.writer)
        return (
            found if found.last >= self._head.last else replace(self._head, bases=found.bases)
        )

    def _refuse(self, writer: str) -> NoReturn:
        """End this writer's work in the folder.

        Raises:
            OtherWriterError: always.
        """
        raise OtherWriterError(path=str(self.folder), writer=writer, own=self.writer)


def _schema_of(
    tables: Sequence[StreamTable], dense: Mapping[str, NDArray[np.float32]]
) -> StreamSchema:
    """Return what all files of a stream have in common."""
    shapes = {name: np.shape(values) for name, values in dense.items()}
    return StreamSchema({table.name: table for table in tables}, shapes)


def _is_same(found: StreamHead, before: StreamHead | None) -> bool:
    """Return whether a folder has the stream that it had."""
    return before is not None and found.stream == before.stream
