"""``StreamReader``: bases and changes of a stream in a folder, proven."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from paramfleet_shared.deltas.chain import Chain
from paramfleet_shared.deltas.errors import (
    BaseDamagedError,
    ChangeDamagedError,
    ChangeForkedError,
    ChangeGapError,
    ChangesUnavailableError,
    StreamError,
    StreamReplacedError,
    StreamUnreadableError,
)
from paramfleet_shared.deltas.records import (
    NumberedChange,
    OpenedBase,
    StreamHead,
    StreamTable,
)
from paramfleet_shared.deltas.stored.base_files import (
    BaseManifest,
    open_base,
    read_manifest,
)
from paramfleet_shared.deltas.stored.change_files import (
    StoredChange,
    is_whole,
    read_change,
    read_link,
)
from paramfleet_shared.deltas.stored.head import (
    HEAD,
    base_folder,
    change_file,
    read_head,
    refuse_link,
)
from paramfleet_shared.deltas.stored.schema import StreamSchema

__all__ = ["Accept", "StreamReader"]

Accept = Callable[[str, int, Mapping[str, StreamTable]], None]
"""Given stream, number and tables of a base, raises if it isn't wanted."""

_TRIES = 3
"""How often a newest base is looked for that retention takes away meanwhile."""


class StreamReader:
    """Reads a stream while its writer goes on, and others may read.

    All calls block. One thread uses it at a time. It is at a place of a stream: behind the base
    that was opened last, or the last change that ``changes`` gave.

    Args:
        folder: Where the stream is: a path of this machine, or an address.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._chain: Chain | None = None
        self._schemas: dict[str, StreamSchema] = {}

    def look(self) -> StreamHead:
        """Return what ``stream.json`` says now.

        Raises:
            StreamError: if there is none, or it breaks a rule of the format.
            StreamUnreadableError: if the system refuses it.
        """
        head = read_head(self.folder)
        if head is None:
            rule = "there is no stream.json yet: name the folder that a job publishes to"
            raise StreamError(path=str(self.folder / HEAD), rule=rule)
        return head

    def bases(self) -> list[int]:
        """Return the numbers of the bases that are kept, oldest first.

        Raises:
            StreamError: as ``look``.
        """
        return sorted(self.look().bases)

    def base(self, number: int | None = None, *, accept: Accept | None = None) -> OpenedBase:
        """Map a base, proven by SHA-256 as a whole; changes are read from it on.

        Args:
            number: One of ``bases``; the newest if not given.
            accept: Given what the manifest says of the base, raises if it isn't wanted: then
                its rows aren't read.

        Raises:
            StreamError: as ``look``.
            BaseDamagedError: if a file is missing, or isn't what was written.
            ChangesUnavailableError: if there is no such base, or not any more.
            StreamUnreadableError: if the system refuses a file.
        """
        head, chosen = self.look(), number
        for _ in range(_TRIES):
            chosen = head.base if number is None else number
            if chosen not in head.bases:
                raise self._unavailable(
                    head, chosen, f"no base is kept of it, but {sorted(head.bases)}"
                )
            folder = base_folder(self.folder, head.stream, chosen)
            try:
                manifest = self._manifest(head, chosen)
                if accept is not None:
                    accept(head.stream, chosen, manifest.schema.tables)
                opened = open_base(folder, manifest, head.bases[chosen])
            except FileNotFoundError as error:
                before, head = head, self.look()
                if head.stream == before.stream and chosen in head.bases:
                    reason = f"is missing: {error}"
                    raise BaseDamagedError(
                        path=str(folder), stream=head.stream, number=chosen, reason=reason
                    ) from error
                continue
            self._chain = Chain(head.stream, chosen, opened.digest)
            return opened
        raise self._unavailable(
            head, head.base, "bases are removed again and again while they are opened"
        )

    def changes(self, after: int, until: int) -> Iterator[NumberedChange]:
        """Yield changes ``after + 1`` to ``until`` of the stream, each proven, in their order.

        The stream is that of the base that was opened last; of a reader that has opened none,
        it is that of the folder.

        Args:
            after: The newest change that the caller has; the number of a base for the first.
            until: Up to which one; at most ``look().last``.

        Raises:
            StreamError: as ``look``.
            StreamReplacedError: if the folder has another stream now.
            ChangesUnavailableError: if they were removed, or aren't published yet.
            ChangeGapError: if one is missing.
            ChangeRepeatedError: if an earlier one is in its place.
            ChangeOrderError: if a later one is in its place.
            ChangeForkedError: if one doesn't follow the one before it.
            OtherStreamError: if one is of another stream.
            ChangeDamagedError: if one is torn or altered, or isn't what a writer writes.
            BaseDamagedError: if the manifest of the newest base is damaged.
            StreamUnreadableError: if the system refuses a file.
        """
        for number, stored, _ in self.stored_changes(after, until):
            yield NumberedChange(number, stored.change)

    def stored_changes(
        self, after: int, until: int, *, are_mapped: bool = False
    ) -> Iterator[tuple[int, StoredChange, str]]:
        """Yield what ``changes`` does, with what else the files say.

        Args:
            after: As ``changes``.
            until: The same.
            are_mapped: Whether arrays are views of mapped files; else they are in memory.

        Yields:
            Number, content and SHA-256 of each.

        Raises:
            StreamReplacedError: as ``changes``.
            ChangeDamagedError: as ``changes``.
            StreamUnreadableError: as ``changes``.
            FleetError: as ``changes``.
        """
        head = self.look()
        if self._chain is not None and self._chain.stream != head.stream:
            raise StreamReplacedError(
                path=str(self.folder), stream=self._chain.stream, found=head.stream
            )
        if until > head.last:
            raise self._unavailable(head, until, f"the newest that is published is {head.last}")
        schema = self._schema(head)
        chain = self._chain_at(head, after)
        while chain.number < until:
            number = chain.number + 1
            path = change_file(self.folder, head.stream, number)
            try:
                refuse_link(path.parent)
                link = read_link(path)
                chain.check(link, path=str(path))
                digest = self._digest_of(head, number)
                stored = read_change(path, digest, schema, is_mapped=are_mapped)
            except FileNotFoundError:
                self._refuse_missing(chain, path)
            except OSError as error:
                raise StreamUnreadableError(path=str(path), reason=str(error)) from error
            except ValueError as error:
                self._check_fork(head, number, schema)
                raise ChangeDamagedError(
                    path=str(path), stream=head.stream, number=number, reason=str(error)
                ) from error
            chain.advance(link, digest)
            self._chain = chain
            yield number, stored, digest

    def _check_fork(self, head: StreamHead, number: int, schema: StreamSchema) -> None:
        """Pass if a change is damaged, and not whole where the next one follows another.

        Raises:
            ChangeForkedError: if it is whole, by the SHA-256 that it has of itself.
        """
        path = change_file(self.folder, head.stream, number)
        if number < head.last and is_whole(path, schema):
            later = change_file(self.folder, head.stream, number + 1)
            raise ChangeForkedError(path=str(later), stream=head.stream, number=number + 1)

    def _digest_of(self, head: StreamHead, number: int) -> str:
        """Return the SHA-256 of a change's file, as the next one or the head states it.

        Raises:
            ChangeDamagedError: if the next one's metadata aren't those of a change.
            StreamUnreadableError: if the system refuses the next one.
            FleetError: as ``changes``, if there is no next one.
        """
        if number == head.last:
            return head.digest
        path = change_file(self.folder, head.stream, number + 1)
        try:
            link = read_link(path)
        except FileNotFoundError:
            self._refuse_missing(Chain(head.stream, number, ""), path)
        except OSError as error:
            raise StreamUnreadableError(path=str(path), reason=str(error)) from error
        except ValueError as error:
            raise ChangeDamagedError(
                path=str(path), stream=head.stream, number=number + 1, reason=str(error)
            ) from error
        Chain(head.stream, number, link.previous).check(link, path=str(path))
        return link.previous

    def _refuse_missing(self, chain: Chain, path: Path) -> NoReturn:
        """Say why the file of the next change isn't there.

        Raises:
            StreamReplacedError: if the folder has another stream now.
            ChangesUnavailableError: if retention has removed it.
            ChangeGapError: else.
        """
        now = self.look()
        if now.stream != chain.stream:
            raise StreamReplacedError(
                path=str(self.folder), stream=chain.stream, found=now.stream
            )
        if chain.number < min(now.bases):
            raise self._removed(now, chain.number + 1)
        raise ChangeGapError(path=str(path), stream=chain.stream, number=chain.number + 1)

    def _chain_at(self, head: StreamHead, after: int) -> Chain:
        """Return the place behind a change.

        Raises:
            FleetError: as ``changes``.
        """
        known = self._chain
        if known is not None and known.number == after:
            return known
        if after < min(head.bases):
            raise self._removed(head, after + 1)
        if after in head.bases:
            digest = self._manifest(head, after).digest or head.bases[after]
        else:
            digest = self._digest_of(head, after)
        return Chain(head.stream, after, digest)

    def _removed(self, head: StreamHead, number: int) -> ChangesUnavailableError:
        """Return the error of a change that retention has let go."""
        rule = f"it isn't kept any more: begin at base {head.base}"
        return self._unavailable(head, number, rule)

    def _unavailable(self, head: StreamHead, number: int, rule: str) -> ChangesUnavailableError:
        """Return the error of a change or a base that can't be read now."""
        return ChangesUnavailableError(
            path=str(self.folder), stream=head.stream, number=number, rule=rule
        )

    def _manifest(self, head: StreamHead, number: int) -> BaseManifest:
        """Return the manifest of a base.

        Raises:
            FileNotFoundError: if there is none.
            BaseDamagedError: if it isn't what was written.
        """
        folder = base_folder(self.folder, head.stream, number)
        return read_manifest(folder, head.stream, number, head.bases[number])

    def _schema(self, head: StreamHead) -> StreamSchema:
        """Return what all files of the stream have in common.

        Raises:
            BaseDamagedError: if the newest base's manifest isn't what was written.
        """
        if head.stream not in self._schemas:
            try:
                schema = self._manifest(head, head.base).schema
            except FileNotFoundError as error:
                raise BaseDamagedError(
                    path=str(base_folder(self.folder, head.stream, head.base)),
                    stream=head.stream,
                    number=head.base,
                    reason="its manifest is missing",
                ) from error
            self._schemas = {head.stream: schema}
        return self._schemas[head.stream]
