"""Rows and dense tables of a job's pservers, as passes read them and write them back.

A pass is written back as one change: its numbers are sent to all pservers, which keep them
aside, and when all have them, all are asked to take them. So a pass is wholly in, or not at
all, whenever this worker dies: its next incarnation finds out which (``resolve``).
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.device.admitting import CameIds
from paramfleet.tables.device.table import DeviceRows, layout_of
from paramfleet.training.job import Job
from paramfleet.training.modes.gpubox.wire import (
    PIECE_BYTES,
    DenseNumbers,
    DenseRead,
    Piece,
    RowsRead,
    Written,
    free_rows_of,
    look_messages,
    pieces_of_dense,
    pieces_of_rows,
)
from paramfleet.transport.pservers import PIECES_AT_ONCE, ends_of
from paramfleet_shared.errors import FleetError, IntegrityError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.spans import MissedUpdates

__all__ = ["DenseWrite", "PassTornError", "RowsWrite", "ServedRows"]

log = logging.getLogger(__name__)


class PassTornError(IntegrityError):
    """Some pservers have a pass that others have lost."""

    code = "integrity.pass_torn"
    number: int
    have: list[int]
    """Pservers that have it."""
    lack: list[int]
    """Pservers that have neither taken nor kept it."""
    sentence = (
        "pass {number} was written back to pservers {have} and is lost on {lack}: load a "
        "checkpoint, or start the job again"
    )


class RowsWrite(NamedTuple):
    """What a pass writes back of a table of rows."""

    stepped: DeviceRows
    came: CameIds | None = None
    """Ids that came without a row, of a table that doesn't give every id one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseWrite:
    """A dense table that a pass writes back."""

    spec: TableSpec
    numbers: DenseNumbers
    is_stepped: bool
    missed: MissedUpdates
    """How many of its updates values have missed."""


class ServedRows:
    """Reads and writes for one worker; its coroutines run on the communicator's loop.

    Args:
        job: Its connections.
        specs: All tables of the job.
    """

    def __init__(self, job: Job, specs: Sequence[TableSpec]) -> None:
        self._job = job
        self._specs = {spec.name: spec for spec in specs}
        self._known: list[dict[str, Written]] = [{} for _ in range(job.placement.num_servers)]
        """How far the tables of each pserver have come."""
        self.free_rows: dict[str, NDArray[np.int64]] = {}
        """Rows that each shard of a table might get when it was looked, int64 [shards]: of
        tables where that is limited."""
        self.num_passes = 0
        """Passes that the pservers have taken in this job."""

    @property
    def updates(self) -> dict[str, int]:
        """Return the steps of each table's optimizer, as the pservers count them."""
        return {name: max(known[name].updates for known in self._known) for name in self._specs}

    async def resolve(self) -> None:
        """Find out how far the job's passes have come, and end one that is in doubt.

        If any pserver has taken it, all take it; else it is forgotten.

        Raises:
            PassTornError: if one has taken it that another has lost.
        """
        states = await self._job.pservers.call_all("pass_state", {})
        passes = [int(state.fields["passes"]) for state in states]
        self.num_passes = newest = max(passes)
        behind = [server for server, number in enumerate(passes) if number < newest]
        author = self._job.author.fields()
        torn = [server for server in behind if not _is_held(states[server], newest)]
        if torn:
            have = [server for server, number in enumerate(passes) if number == newest]
            raise PassTornError(number=newest, have=have, lack=torn)
        if behind:
            fields = {**author, "pass": newest, "pieces": None}
            await self._job.pservers.call_all("commit_pass", fields)
        elif any(state.fields["held"] for state in states):
            await self._job.pservers.call_all("abort_pass", {**author, "pass": newest + 1})

    async def look(self) -> bool:
        """Learn how far all tables have come; return whether that was known.

        Rows that this worker has are the pservers' then, as it wrote them back.
        """
        before = self._known
        messages = look_messages(self._specs.values(), self._job.placement)
        answers = await self._read(messages)
        self._known = [
            {
                name: Written(int(about["writes"]), int(about["updates"]))
                for name, about in zip(self._specs, answer.fields["parts"], strict=True)
            }
            for answer in answers
        ]
        self.free_rows = free_rows_of(self._specs.values(), answers, self._job.placement)
        return before == self._known

    async def read_rows(self, table: str, ids: NDArray[np.int64]) -> DeviceRows:
        """Return rows as they are, new ones where there is none.

        Args:
            table: A sparse one.
            ids: int64 [n], each once.
        """
        spec = self._specs[table]
        num = max(1, PIECE_BYTES * self._job.placement.num_servers // layout_of(spec).row_bytes)
        rows = np.empty((len(ids), layout_of(spec).pitch), np.float32)
        waits = None if spec.entry.admits_all else np.empty(len(ids), np.int32)

        async def read_some(start: int) -> None:
            read = RowsRead(spec, ids[start : start + num], self._job.placement)
            answers = await self._read(read.messages())
            found = await asyncio.to_thread(read.join, answers)
            rows[start : start + num] = found.rows
            if waits is not None and found.waits is not None:
                waits[start : start + num] = found.waits

        works = (read_some(start) for start in range(0, len(ids), num))
        await ends_of(works, at_once=PIECES_AT_ONCE)
        return DeviceRows(ids, rows, waits)

    async def read_dense(self, table: str) -> DenseWrite:
        """Return a dense table, as it would be written back."""
        spec, is_stepped, missed = self._specs[table], False, MissedUpdates()
        columns = 1 + spec.optimizer.num_state_columns
        numbers = DenseNumbers(
            np.empty(spec.size, np.float32),
            np.empty((columns - 1, spec.size), np.float32),
        )
        for start in range(0, spec.size, PIECE_BYTES // (4 * columns)):
            piece = slice(start, start + PIECE_BYTES // (4 * columns))
            read = DenseRead(spec, piece, self._job.placement)
            answers = await self._read(read.messages())
            is_stepped |= any(answer.fields["parts"][0]["stepped"] for answer in answers)
            missed = read.missed(answers)
            read.put(answers, numbers)
        return DenseWrite(spec=spec, numbers=numbers, is_stepped=is_stepped, missed=missed)

    async def prepare(
        self,
        rows: Mapping[str, RowsWrite],
        dense: Sequence[DenseWrite],
        *,
        steps: Mapping[str, int],
    ) -> list[int]:
        """Have all pservers keep aside what a pass writes back; return each one's pieces.

        Args:
            rows: Of rows, by table.
            dense: The dense tables that this worker writes.
            steps: That the pass has taken, by table.

        Raises:
            ForeignWriteError: if a table was changed since the pass began.
            CapacityError: if a pserver has no room for new rows.
        """
        number = self.num_passes + 1
        pieces: list[list[Piece]] = [[] for _ in self._known]
        for spec in self._specs.values():
            of_table = self._pieces_of(spec, rows, dense)
            for own, more in zip(pieces, of_table, strict=True):
                own.extend(more)
        of_servers = (
            ends_of(self._prepares(server, number, own, steps), at_once=PIECES_AT_ONCE)
            for server, own in enumerate(pieces)
        )
        await ends_of(of_servers, at_once=len(pieces))
        return [len(own) for own in pieces]

    async def commit(self, counts: Sequence[Sequence[int]]) -> None:
        """Have all pservers take what all workers have prepared.

        Args:
            counts: By worker, how many pieces each pserver has.

        Raises:
            FleetError: if it can't be said whether all have: the job can't go on.
        """
        fields = {**self._job.author.fields(), "pass": self.num_passes + 1}
        messages = []
        for server in range(len(self._known)):
            pieces = [[rank, count[server]] for rank, count in enumerate(counts)]
            messages.append(Message(fields={**fields, "pieces": pieces}, tensors={}))
        await self._job.pservers.call("commit_pass", messages)

    def note_committed(self, *, steps: Mapping[str, int]) -> None:
        """Count the pass as one that all pservers have.

        Args:
            steps: That it has taken, by table.
        """
        self.num_passes += 1
        self._known = [
            {
                name: Written(each.writes + 1, each.updates + steps[name])
                for name, each in own.items()
            }
            for own in self._known
        ]

    def _pieces_of(
        self, spec: TableSpec, rows: Mapping[str, RowsWrite], dense: Sequence[DenseWrite]
    ) -> Iterator[list[Piece]]:
        """Return what prepares one table: a list for each pserver."""
        placement = self._job.placement
        for each in dense:
            if each.spec.name == spec.name:
                return pieces_of_dense(
                    spec,
                    each.numbers,
                    placement,
                    is_stepped=each.is_stepped,
                    missed=each.missed,
                )
        if spec.kind == "dense":  # another worker writes it
            return iter([[] for _ in self._known])
        none = np.empty((0, layout_of(spec).pitch), np.float32)
        nothing = RowsWrite(DeviceRows(np.empty(0, np.int64), none))
        stepped, came = rows.get(spec.name, nothing)
        return pieces_of_rows(spec, stepped, placement, came)

    def _prepares(
        self, server: int, number: int, pieces: Sequence[Piece], steps: Mapping[str, int]
    ) -> Iterator[Any]:
        for place, piece in enumerate(pieces):
            known = self._known[server][piece.part["table"]]
            part = {
                **piece.part,
                "writes": known.writes,
                "updates": known.updates + steps[piece.part["table"]],
            }
            fields = {
                **self._job.author.fields(),
                "pass": number,
                "piece": place,
                "parts": [part],
            }
            if place == len(pieces) - 1:
                fields["pieces"] = len(pieces)
            yield self._prepare(server, fields, piece.tensors)

    async def _prepare(
        self, server: int, fields: dict[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> None:
        pservers = self._job.pservers
        await pservers.call_one(
            server, "prepare_pass", fields, tensors=tensors, timeout_s=pservers.call_timeout_s
        )

    async def abort(self) -> bool:
        """Have what was prepared forgotten; return whether all pservers have."""
        fields = {**self._job.author.fields(), "pass": self.num_passes + 1}
        try:
            await self._job.pservers.call_all("abort_pass", fields)
        except FleetError as error:  # why it was aborted is on its way
            log.info("worker.pass_not_aborted", extra={"reason": str(error)})
            return False
        return True

    async def _read(self, messages: Sequence[Message]) -> list[Message]:
        author = self._job.author.fields()
        named = [replace(each, fields={**author, **each.fields}) for each in messages]
        return await self._job.pservers.call("read_pass", named)


def _is_held(state: Message, number: int) -> bool:
    """Return whether a pserver has all that was sent of a pass, and can take it."""
    held = state.fields["held"]
    return bool(held) and all(each["pass"] == number and each["sealed"] for each in held)
