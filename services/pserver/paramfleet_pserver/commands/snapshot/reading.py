"""Restores a snapshot: from the messages of ``snapshot_of``, a machine in the same state.

Whatever is wrong with a message is an error before the machine is used by anybody: it is
made here, and returned when all of it is there.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from paramfleet_pserver.commands.applying import Kept, StepApplier
from paramfleet_pserver.commands.codec import command_of
from paramfleet_pserver.commands.geo import GeoExchange
from paramfleet_pserver.commands.machine import Machine, kind_of
from paramfleet_pserver.commands.passes import KeptPiece, PassMode
from paramfleet_pserver.commands.records import Contribute, Origin, Prepare
from paramfleet_pserver.commands.removing import Removal
from paramfleet_pserver.commands.snapshot.arrays import array_of, rows_of
from paramfleet_pserver.commands.snapshot.control import VERSION
from paramfleet_pserver.commands.snapshot.old import OldReader
from paramfleet_pserver.commands.snapshot.recorder_reader import RecorderReader
from paramfleet_pserver.commands.snapshot.rows import TableReader
from paramfleet_pserver.commands.terms import Terms
from paramfleet_pserver.core.identities import Taken
from paramfleet_pserver.core.pacing import ASYNC_RATES, AsyncRate
from paramfleet_pserver.requests.checked import (
    LOSS_REDUCTIONS,
    MAX_WORKERS,
    MODES,
    ON_WORKER_LOSS,
    Mode,
)
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.capacity import Claims, Wanted, claim_at_once, claim_counted
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.parts import SparsePart
from paramfleet_pserver.tables.table import SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.logs import SnapshotDamagedError, SnapshotPlaceError
from paramfleet_shared.errors.tables import (
    TableLimitError,
    TableMemoryError,
    TierModeError,
    TierRowError,
)
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.memory.reservation import CapacityError
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["Restoring", "restore"]

_LIMITS = (
    CapacityError,
    SnapshotPlaceError,
    TableLimitError,
    TableMemoryError,
    TierModeError,
    TierRowError,
)
"""What a server says of itself, and not of the snapshot."""


async def restore(messages: Iterable[Message], store: TableStore, owners: Owners) -> Machine:
    """Return a machine in the state that a snapshot is of.

    Args:
        messages: As ``snapshot_of`` yields them.
        store: Where its tables go; empty. Its shards are divided among as many owners as they
            were. After an error it is of no use.
        owners: Who works on them; they have nothing to do.

    Raises:
        SnapshotDamagedError: if a message isn't what it should be, or is missing.
        SnapshotPlaceError: if it is of other shards.
        TableLimitError: if this server takes no such tables.
        TableMemoryError: if there is no memory for them.
        CapacityError: if there is no room for their rows.
    """
    restoring = Restoring(store, owners)
    for message in messages:
        await restoring.take(message)
    return restoring.machine()


class Restoring:
    """A machine that is made of a snapshot's messages as they come.

    Args:
        store: Where its tables go; empty. After an error it is of no use.
        owners: Who works on them.
    """

    def __init__(self, store: TableStore, owners: Owners) -> None:
        self._reader = _Reader(store, owners)
        self._number = 0
        self.is_whole = False
        """Whether the last message has come."""

    async def take(self, message: Message) -> None:
        """Take the next message.

        Raises:
            SnapshotDamagedError: if it isn't what it should be.
            FleetError: why it can't be taken here; see ``restore``.
        """
        self._number += 1
        if self.is_whole:
            raise SnapshotDamagedError(part=self._number, reason="it comes after the end")
        try:
            self.is_whole = await self._reader.take(message, self._number)
        except _LIMITS:
            raise
        except (ContractError, ValueError, OverflowError) as error:
            raise SnapshotDamagedError(part=self._number, reason=str(error)) from error

    def machine(self) -> Machine:
        """Return the machine.

        Raises:
            SnapshotDamagedError: if messages are missing.
        """
        if not self.is_whole:
            raise SnapshotDamagedError(part=self._number + 1, reason="it is missing")
        return self._reader.machine


class _Reader:
    """Takes one message after the other."""

    def __init__(self, store: TableStore, owners: Owners) -> None:
        self._store = store
        self._owners = owners
        self._machine: Machine | None = None
        tables = TableReader(store)
        recorders = self._recorders = RecorderReader(tables)
        self._old = OldReader(store)
        self._kinds: Mapping[str, Callable[[Message], None]] = {
            "machine": self._head,
            "table": tables.table,
            "values": tables.values,
            "range": tables.range,
            "places": tables.places,
            "free": tables.free,
            "index": tables.index,
            "sketch": tables.sketch,
            "rows": tables.rows,
            "steps": self._steps,
            "progress": self._progress,
            "old": self._old.take,
            "passes": self._passes,
            "exchanges": self._exchanges,
            "recorder": recorders.recorder,
            "waiting": recorders.waiting,
            "queue": recorders.queue,
            "periods": recorders.periods,
        }

    @property
    def machine(self) -> Machine:
        """Return the machine.

        Raises:
            MalformedMessageError: if the first message hasn't made it.
        """
        if self._machine is None:
            raise MalformedMessageError(where="the snapshot", rule="must begin with 'machine'")
        return self._machine

    async def take(self, message: Message, number: int) -> bool:
        """Take a message; return whether it is the last one.

        Raises:
            MalformedMessageError: if it is of no kind, or comes before the first one.
            ContractError: why it is wrong.
        """
        fields = Fields(message.fields, where="snapshot")
        kind = fields.text("kind")
        if kind != "machine":
            _ = self.machine
        if kind == "end":
            self._end(fields, number)
            return True
        if kind in {"push", "prepared"}:
            await self._keep(kind, message)
        elif kind in self._kinds:
            self._kinds[kind](message)
        else:
            raise MalformedMessageError(where="field 'kind'", rule="names no part of one")
        return False

    def _head(self, message: Message) -> None:
        fields = Fields(message.fields, where="machine")
        if self._machine is not None:
            raise MalformedMessageError(where="machine", rule="comes twice")
        store, version = self._store, fields.integer("version")
        if version != VERSION:
            rule = f"must be {VERSION}, not {version}"
            raise MalformedMessageError(where="field 'version'", rule=rule)
        here = {
            "shards": [store.shards.start, store.shards.stop],
            "num_shards": store.num_shards,
        }
        for name, have in here.items():
            got = message.fields.get(name)
            if got != have:
                raise SnapshotPlaceError(field=name, have=str(have), got=str(got))
        store.divide(fields.integer("num_owners", least=1, most=len(store.shards)))
        terms = _terms_of(Fields(fields.map("terms"), where="terms"))
        store.check_mode(terms.mode)
        elastic = fields.flag("elastic")
        if elastic and kind_of(terms.mode).takes_all:
            rule = f"can't be true: {terms.mode} takes all workers"
            raise MalformedMessageError(where="field 'elastic'", rule=rule)
        machine = Machine(
            terms,
            elastic=elastic,
            returning=fields.flag("returning"),
            store=store,
            owners=self._owners,
        )
        machine.max_staleness = fields.optional_integer("max_staleness")
        if "origin" in message.fields:  # snapshots of before have none
            machine.origin = _origin_of(fields)
        if not machine.mode.takes_all:
            machine.gate.limit(machine.max_staleness)
        committed = {Rank(rank): Step(end) for rank, end in rows_of(message, "committed", 2)}
        ahead = [
            (Rank(rank), Step(first), Step(end))
            for rank, first, end in rows_of(message, "ahead", 3)
        ]
        machine.gate.restore(committed, ahead)
        machine.lives = {Rank(rank): life for rank, life in rows_of(message, "lives", 2)}
        machine.former, machine.left = (
            {Rank(rank): Step(step) for rank, step in rows_of(message, name, 2)}
            if name in message.tensors  # snapshots of before have none
            else {}
            for name in ("former", "left")
        )
        lives = rows_of(message, "incarnations", 2)
        incarnations = {worker: incarnation for worker, incarnation in lives}  # noqa: C416
        machine.identities.restore(incarnations, _taken_of(message))
        for worker, incarnation, sequence, num_rows in rows_of(message, "removals", 4):
            identity = ChangeIdentity(worker, incarnation, sequence)
            removal = Removal(identity, self._owners.start(()), [num_rows])
            machine.removals[Rank(worker)] = removal
        self._machine = machine

    def _steps(self, message: Message) -> None:
        fields, mode = Fields(message.fields, where="steps"), self._mode(StepApplier)
        left = {Rank(rank): Step(step) for rank, step in rows_of(message, "left", 2)}
        if mode.confirmed is not None:
            found = rows_of(message, "confirmed", 2)
            mode.confirmed |= {Rank(rank): Step(step) for rank, step in found}
        mode.version = fields.integer("applied")
        mode.reservoir.restore(Step(fields.integer("next")), left)

    def _progress(self, message: Message) -> None:
        fields = Fields(message.fields, where="progress")
        rank, step = Rank(fields.integer("rank")), Step(fields.integer("step"))
        state = array_of(message, "progress", "uint8", (None,)).tobytes()
        self.machine.states.note(rank, step, state)

    def _passes(self, message: Message) -> None:
        fields = Fields(message.fields, where="passes")
        self._mode(PassMode).book.committed = fields.integer("committed")

    def _exchanges(self, message: Message) -> None:
        ranks, unannounced = (
            [Rank(rank) for (rank,) in rows_of(message, name, 1)]
            for name in ("ranks", "unannounced")
        )
        fields = Fields(message.fields, where="exchanges")
        announced = fields.texts("announced")
        term = fields.optional_integer("term") or 0
        self._mode(GeoExchange).restore(ranks, unannounced, announced, term=term)

    async def _keep(self, kind: str, message: Message) -> None:
        """Keep a push of a step, or a piece of a pass, with room for what it creates.

        Raises:
            MalformedMessageError: if it is neither.
            ContractError: why it is wrong.
        """
        about = Fields(message.fields, where=kind).map("command")
        command = command_of(Message(fields=about, tensors=message.tensors), self._store)
        if kind == "push" and isinstance(command, Contribute):
            push, steps = command.push, self._mode(StepApplier)
            claims = await self._claim((part.table, part.content) for part in push.parts)
            kept = Kept(push.parts, claims, push.norms)
            steps.reservoir.keep(push.rank, push.step, push.weight, kept)
            steps.note_norms(push)
        elif kind == "prepared" and isinstance(command, Prepare):
            piece, parts = command.prepare.piece, command.prepare.parts
            claims = await self._claim((part.table, part.content) for part in parts)
            self._mode(PassMode).book.prepare(piece, KeptPiece(parts, claims))
        else:
            raise MalformedMessageError(where=kind, rule="must hold a command of its kind")

    async def _claim(self, parts: Iterable[tuple[Table, Any]]) -> Claims:
        wanted: list[Wanted] = [
            table.wanted_by(content)
            for table, content in parts
            if isinstance(table, SparseTable) and isinstance(content, SparsePart)
        ]
        claims = claim_at_once(wanted)
        return await claim_counted(wanted, self._owners) if claims is None else claims

    def _end(self, fields: Fields, number: int) -> None:
        if fields.integer("messages") != number - 1:
            rule = f"says {fields.integer('messages')} messages, and {number - 1} came"
            raise MalformedMessageError(where="end", rule=rule)
        mode = self.machine.mode
        if isinstance(mode, StepApplier) and mode.old is not None:
            mode.old.restore(self._old.end())
        for table, kept in self._recorders.end():
            self._mode(GeoExchange).restore_recorders(table, kept)

    def _mode(self, kind: type[Any]) -> Any:
        mode = self.machine.mode
        if not isinstance(mode, kind):
            rule = f"is of another mode than {mode.name!r}"
            raise MalformedMessageError(where="the message", rule=rule)
        return mode


def _terms_of(fields: Fields) -> Terms:
    return Terms(
        mode=fields.choice("mode", MODES, cast("Mode", None)),
        worker_num=fields.integer("worker_num", least=1, most=MAX_WORKERS),
        max_staleness=fields.optional_integer("max_staleness"),
        async_rate=fields.choice("async_rate", ASYNC_RATES, cast("AsyncRate", None)),
        sync_batch_norm=fields.flag("sync_batch_norm"),
        on_worker_loss=fields.choice("on_worker_loss", ON_WORKER_LOSS, "wait"),
        loss_reduction=fields.choice("loss_reduction", LOSS_REDUCTIONS, "mean"),
    )


def _origin_of(fields: Fields) -> Origin:
    found = fields.texts("origin")
    if len(found) != len(Origin._fields):
        rule = "must be a folder and the SHA-256 of its manifest"
        raise MalformedMessageError(where="field 'origin'", rule=rule)
    return Origin(*found)


def _taken_of(message: Message) -> list[Taken]:
    """Return which changes were taken.

    Raises:
        MalformedMessageError: if the sequences aren't as many as the windows say.
    """
    windows = array_of(message, "windows", "int64", (None, 5))
    sequences = [one for (one,) in rows_of(message, "sequences", 1)]
    if (windows < 0).any() or int(windows[:, 3:].sum()) != len(sequences):
        raise MalformedMessageError(where="tensor 'windows'", rule="must count the sequences")
    taken, at = [], 0
    for worker, incarnation, following, num_later, num_voided in windows.tolist():
        middle, stop = at + num_later, at + num_later + num_voided
        later, voided = tuple(sequences[at:middle]), tuple(sequences[middle:stop])
        taken.append(Taken(worker, incarnation, following, later, voided))
        at = stop
    return taken
