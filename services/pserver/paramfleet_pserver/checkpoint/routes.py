"""The operations of the data plane about checkpoints: ``hold``, ``save``, ``saved``, ``load``.

A save is of this server's part, as it is at one moment. What makes the parts of all servers
one cut is a hold, which keeps pushes back from before the save until this server has taken its
image; that is written then, and training goes on. In sync nothing is held, because no step is
whole while worker 0 saves, and the answer says which step that was.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.checkpoint.apart import Apart, Taken
from paramfleet_pserver.checkpoint.gathering import GONE, SILENT, Gathering, rules_of
from paramfleet_pserver.checkpoint.images import Marks, StoreImage
from paramfleet_pserver.checkpoint.saved_states import SavedStates
from paramfleet_pserver.checkpoint.storage import (
    Loaded,
    load_tables,
    save_tables,
    trained_otherwise,
)
from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.records import Load, Origin
from paramfleet_pserver.core.holding import Source
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.asking import Asking
from paramfleet_pserver.waiting.holding import Holding
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.checkpoint.increments import is_identity
from paramfleet_shared.checkpoint.manifest import SavedTable
from paramfleet_shared.errors.served import FencedError
from paramfleet_shared.files.folders import CheckpointDirs
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.rows.choosing import Choice
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.ids import Rank
from paramfleet_shared.values.spans import MissedUpdates

__all__ = ["Checkpointing"]

MAX_HOLD_S = 60.0
"""Most seconds that pushes are held for a save that doesn't begin."""

MAX_WAIT_S = 60.0
"""Most seconds for which an answer waits for the end of writing."""

_MAX_NAME = 64

log = logging.getLogger(__name__)


class Checkpointing:
    """Saves and loads one server's tables, and holds pushes meanwhile.

    Args:
        store: The tables.
        owners: Who works on them.
        server: This server's index.
        clock: For how long pushes are held.
        dirs: Where requests may have checkpoints saved and loaded.
    """

    def __init__(
        self,
        store: TableStore,
        owners: Owners,
        *,
        server: int,
        clock: Clock,
        dirs: CheckpointDirs,
    ) -> None:
        self._store = store
        self._owners = owners
        self._server = server
        self._clock = clock
        self._dirs = dirs
        self.holding = Holding(clock)
        """What pushes ask."""
        self.asking = Asking(clock)
        """What workers are asked."""
        self._apart = Apart()
        self.saved_states = SavedStates()
        """Of the checkpoint that was loaded last."""
        self.origin = Origin()
        """What was loaded last."""

    async def hold(self, request: Request, training: Training) -> Message:
        """Hold pushes, and answer which ones were applied; ``for_s`` 0 lets them go on.

        May be repeated: then it names what other servers have applied, which is let through.

        Raises:
            MalformedMessageError: if a field is wrong.
            FencedError: if this isn't the incarnation of the worker that declared last.
        """
        fields = Fields(request.message.fields, where="hold")
        rank, incarnation = fields.integer("rank"), fields.integer("incarnation")
        current = training.identities.incarnation(rank)
        if incarnation != current:  # a hold makes no incarnation known
            raise FencedError(worker=rank, incarnation=incarnation, current=current)
        name, for_s = _name_of(request.message.fields.get("cut")), fields.number("for_s")
        if not name or not 0 <= for_s <= MAX_HOLD_S:
            rule = f"needs a name, and a number of seconds from 0 to {MAX_HOLD_S:g}"
            raise MalformedMessageError(where="hold", rule=rule)
        targets = _targets_of(request.message.fields.get("targets"))
        if for_s:
            self.holding.hold(name, for_s=for_s, targets=targets)
        else:
            self.holding.end(name)
        return Message(
            fields={
                "taken": [
                    [*each[:3], list(each.later), list(each.voided)]
                    for each in training.identities.taken()
                ],
                "unfinished": [list(each) for each in self.holding.unfinished()],
                "incarnations": [
                    list(each) for each in training.identities.incarnations().items()
                ],
            }
        )

    async def save(self, request: Request, training: Training | None) -> Message:
        """Write this server's part of a checkpoint; ends the hold that it names.

        Where it names ``states``, GEO's workers are asked for theirs while it is written.
        Where it has a name of its own, ``apart``, it is answered when the image is taken, and
        ``saved`` says the rest. Where it names a ``chain``, rows that change are marked from
        then on, and only those are written that changed since another save, if that is known:
        ``increment`` says so. Where it has a ``choice``, rows of tables with an accessor are
        written by what they are worth instead, and the chain is one of exports.

        ``held`` says whether the hold was in force from its beginning until the image was
        taken; ``steps`` is how many steps of sync were applied before and after that.

        Raises:
            FencedError: if a newer incarnation of the worker is known: it gives no save up.
        """
        _refuse_former(request, training)
        name = _name_of(request.message.fields.get("apart", ""), "apart")
        if name:
            begin = partial(self._take, request, training)
            deadline = request.deadline
            left_s = MAX_WAIT_S if deadline is None else deadline - self._clock.monotonic()
            patience_s = max(0.0, left_s / 2)  # the image takes time, too
            return await self._apart.take(name, begin, patience_s=patience_s)
        taken = await self._take(request, training)
        try:
            written = await asyncio.shield(taken.written)
        finally:
            taken.written.cancel()  # if nobody waits for its end any more
        fields = {**written.fields, **taken.answer.fields}
        fields["paused_s"] = max(taken.answer.fields["paused_s"], written.fields["paused_s"])
        return Message(fields=fields, tensors=taken.answer.tensors)

    async def saved(self, request: Request, training: Training | None) -> Message:
        """Answer how the writing of a save has ended; ``done`` is false if it hasn't as yet.

        Raises:
            SaveGoneError: if this process has no such save.
            FencedError: if a newer incarnation of the worker is known.
            MalformedMessageError: if a field is wrong.
        """
        _refuse_former(request, training)
        fields = Fields(request.message.fields, where="saved")
        name, wait_s = _name_of(fields.text("apart"), "apart"), fields.number("wait_s")
        if not name or not 0 <= wait_s <= MAX_WAIT_S:
            rule = f"needs a name, and a number of seconds from 0 to {MAX_WAIT_S:g}"
            raise MalformedMessageError(where="saved", rule=rule)
        written = await self._apart.written(name, wait_s=wait_s)
        if written is None:
            return Message(fields={"done": False})
        return Message(fields={**written.fields, "done": True})

    async def _take(self, request: Request, training: Training | None) -> Taken:
        """Take an image, and begin to write it."""
        if training is not None:
            training.machine.check_whole()
        fields = Fields(request.message.fields, where="save")
        version = fields.optional_integer("min_version")
        if training is not None and version is not None:
            # A server that went on from its disk may be steps behind: they come again.
            await training.waits.wait(version, deadline=request.deadline)
        _refuse_former(request, training)  # others had time to come
        name = _name_of(request.message.fields.get("cut", ""))
        held = self.holding.begin_save(name)
        image = None
        try:
            directory = await asyncio.to_thread(self._dirs.require, fields.text("dirname"))
            positions, without = await self._positions(request.message, training)
            gathering = self._gathering(request.message, training)
            steps = [_steps_of(training)]
            choice = _choice_of(request.message)
            marks = _marks_of(request.message, choice)
            image = StoreImage(self._store, self._owners, marks=marks)
            await image.begun()
            steps.append(_steps_of(training))
        except BaseException:
            self.holding.end(name)
            if image is not None:
                await image.end()
            raise
        is_increment = bool(marks.since) and image.knows_changes
        writing = {"only_changed": is_increment, "choice": choice}
        work = self._write(image, directory, gathering, hold=name, writing=writing)
        written = asyncio.get_running_loop().create_task(work)
        written.add_done_callback(_note_seen)
        # Where it isn't apart, its tables must not change until they are read.
        paused_s = self.holding.end(name) if image.is_apart else await _paused_s(written)
        if held:
            log.debug("pserver.pushes_held", extra={"seconds": round(paused_s, 3)})
        about = {"without": without, "held": held, "paused_s": paused_s, "steps": steps}
        about["increment"] = is_increment
        return Taken(answer=Message(fields=about, tensors=positions), written=written)

    async def _write(
        self,
        image: StoreImage,
        directory: Path,
        gathering: Gathering,
        *,
        hold: str,
        writing: Mapping[str, Any],
    ) -> Message:
        """Write an image, and end it; a hold of that name is ended, too."""
        paused_s = 0.0
        try:
            saved = await save_tables(
                image,
                directory,
                server=self._server,
                gathering=gathering,
                **writing,
            )
        finally:
            paused_s += self.holding.end(hold)
            await image.end()
        return Message(
            fields={
                "files": [file.to_wire() for file in saved.files],
                "removed": [each.to_wire() for each in saved.removed],
                "left_out": saved.left_out,
                "tables": [
                    SavedTable(
                        spec=gathering.spec(spec),
                        version=gathering.version(spec, image.versions[spec.name]),
                        missed=image.missed.get(spec.name, MissedUpdates()),
                    ).to_wire()
                    for spec in (table.spec for table in image.tables)
                ],
                "gathered": gathering.outcome.to_wire(),
                "paused_s": paused_s,
            }
        )

    async def _positions(
        self, message: Message, training: Training | None
    ) -> tuple[dict[str, NDArray[Any]], list[list[Any]]]:
        """Return the workers' positions in their data, and whose are missing, and why.

        The first server asks for all.
        """
        asked = message.fields.get("positions")
        if training is None or self._server or asked is None:
            return {}, []
        step = Fields(asked, where="save positions").optional_integer("step")
        workers = _workers_of(training)
        gone = self.asking.gone
        there = [rank for rank in workers if rank not in gone]
        question = Message(fields={"about": "positions", "step": step})
        answers = await self.asking.ask(there, question)
        found: dict[str, NDArray[Any]] = {}
        without: list[list[Any]] = [[rank, GONE] for rank in workers if rank in gone]
        for rank in there:
            answer = answers.get(rank)
            packed = None if answer is None else answer.tensors.get("positions")
            if packed is not None and packed.dtype == np.uint8:
                found[f"positions.{rank}"] = packed
            else:
                lack = None if answer is None else answer.fields.get("lack")
                without.append([rank, lack if type(lack) is str else SILENT])
        return found, without

    def _gathering(self, message: Message, training: Training | None) -> Gathering:
        """Return what gathers the workers' states; nothing if none are asked for."""
        rules = rules_of(message)
        if training is None or not training.mode.states_apart or not rules:
            return Gathering(self.asking, [], {})
        return Gathering(self.asking, _workers_of(training), rules)

    async def answer(self, request: Request, training: Training) -> Message:
        """Take a worker's answer, and wait for the next question.

        With ``ends`` it leaves. When the first one does, which saves, all others may go.

        Raises:
            FencedError: if a newer incarnation of the worker is known.
        """
        fields = Fields(request.message.fields, where="answer")
        rank = Rank(fields.integer("rank"))
        training.check_rank(rank)
        training.fence(rank, fields.integer("incarnation"))
        if fields.flag("ends"):
            self.asking.leave(rank)
        question = await self.asking.serve(
            rank, fields.integer("to"), request.message, deadline=request.deadline
        )
        if question is None:
            return Message(fields={"number": 0, "ends": self.asking.is_over(rank)})
        asked = question.message
        about = {**asked.fields, "number": question.number, "ends": False}
        return Message(fields=about, tensors=asked.tensors)

    async def states(self, request: Request, training: Training) -> Message:
        """Answer with states of the checkpoint that was loaded last, or with what there are."""
        fields = Fields(request.message.fields, where="states")
        training.check_rank(Rank(fields.integer("rank")))
        file = fields.optional_integer("file")
        if file is None:
            return await self.saved_states.listed()
        return await self.saved_states.read(file, fields.integer("row"))

    async def load(self, request: Request, training: Training | None) -> Message:
        """Take this server's part of a checkpoint into the tables.

        Raises:
            FencedError: if a newer incarnation of the worker is known, also when all is read.
        """
        _refuse_former(request, training)
        fields = Fields(request.message.fields, where="load")
        directory = await asyncio.to_thread(self._dirs.require, fields.text("dirname"))
        digest = fields.text("manifest") if "manifest" in request.message.fields else ""
        loaded = await self.load_from(
            directory,
            training,
            digest=digest,
            not_negative=frozenset(fields.texts("not_negative")),
            allow=self._dirs.require,
            check=partial(_refuse_former, request, training),
        )
        return Message(
            fields={
                "rows": {table.spec.name: table.num_rows for table in loaded.tables},
                "left_out": [list(each) for each in loaded.left_out],
            }
        )

    async def load_from(
        self,
        directory: Path,
        training: Training | None,
        *,
        digest: str = "",
        not_negative: Collection[str] = (),
        allow: Callable[[str], object] | None = None,
        check: Callable[[], None] | None = None,
    ) -> Loaded:
        """Take this server's part of a checkpoint: any, or that of a manifest's SHA-256.

        A negative id of the tables ``not_negative`` is refused. ``allow`` is given each folder
        that the checkpoint builds on; ``check`` is called when all is read, and raises if it
        isn't wanted any more.
        """
        directory = await asyncio.to_thread(directory.resolve)  # a link may move meanwhile
        apart = training is not None and training.mode.states_apart
        loaded = await load_tables(
            self._store,
            self._owners,
            directory,
            digest=digest,
            apart=apart,
            not_negative=not_negative,
            allow=allow,
        )
        if check is not None:
            check()
        origin = Origin(str(directory), loaded.digest)
        if training is None:
            self._store.put(loaded.tables)
        else:
            training.execute(Load(tuple(loaded.tables), origin))
        self._note(origin)
        if training is not None:
            await training.announce(training.mode.news_of_load())
        _log_left_out(loaded)
        return loaded

    def go_on(self, machine: Machine) -> None:
        """Answer from now on with what the tables of a machine were loaded from."""
        if machine.origin.folder:
            self._note(machine.origin)

    def _note(self, origin: Origin) -> None:
        self.origin = origin
        self.saved_states.begin(Path(origin.folder), origin.digest)

    async def fit(self, specs: Iterable[TableSpec], *, apart: bool) -> None:
        """Turn what was loaded before the workers said how they train it into that.

        Called before the first declaration takes effect, when all tables are loaded ones.

        Args:
            specs: The tables, as the workers declare them.
            apart: Whether each worker has optimizer states of its own.

        Raises:
            SavedTableMismatchError: if a table can't take the rows that were loaded.
            TableMemoryError: if there is no memory for one, beside what is in use.
        """
        known = {table.spec.name: table for table in self._store}
        other = [s for s in specs if s.name in known and known[s.name].spec != s]
        for spec in other:
            spec.check_same_rows(known[spec.name].spec)
        turned = [
            await trained_otherwise(
                known[spec.name], spec, self._store, self._owners, apart=apart
            )
            for spec in other
        ]
        for loaded in turned:
            self._store.replace(loaded.tables)
            _log_left_out(loaded)


def _refuse_former(request: Request, training: Training | None) -> None:
    """Refuse what a worker's former self asks for; nothing makes an incarnation known here.

    Raises:
        FencedError: if a newer one is known.
    """
    fields = Fields(request.message.fields, where=request.op)
    rank, incarnation = fields.integer("rank"), fields.integer("incarnation")
    if training is not None:
        training.identities.expect(rank, incarnation)


async def _paused_s(written: "asyncio.Task[Message]") -> float:
    """Return for how long a save held pushes, when it is written; end it if it is given up."""
    try:
        await asyncio.wait((written,))
    except BaseException:  # given up: pushes are held for nobody
        written.cancel()
        await asyncio.wait((written,))
        raise
    if written.exception():
        return 0.0
    paused_s: float = written.result().fields["paused_s"]
    return paused_s


def _note_seen(written: "asyncio.Task[Message]") -> None:
    """Take note of an error that nobody may ask for: who saves may be gone."""
    if not written.cancelled():
        written.exception()


def _log_left_out(loaded: Loaded) -> None:
    for table, saved, rule in loaded.left_out:
        log.warning(
            "pserver.states_left_out", extra={"table": table, "saved": saved, "rule": rule}
        )
    for differs in loaded.differing:
        log.warning("pserver.columns_differ", extra=differs._asdict())


def _workers_of(training: Training) -> list[Rank]:
    """Return all workers that have taken part, in rank order."""
    return [Rank(rank) for rank in sorted(training.identities.incarnations())]


def _steps_of(training: Training | None) -> int | None:
    """Return the steps of sync that are applied; None in other modes."""
    return None if training is None else training.mode.applied


def _choice_of(message: Message) -> Choice | None:
    """Return which rows of tables with an accessor are saved; None for all.

    Raises:
        MalformedMessageError: if it isn't one.
    """
    wire = message.fields.get("choice")
    if wire is None:
        return None
    try:
        return Choice.from_wire(wire)
    except ValueError as error:
        raise MalformedMessageError(where="save field 'choice'", rule=str(error)) from error


def _marks_of(message: Message, choice: Choice | None) -> Marks:
    """Return how rows are marked: by the identities of the save, and of an earlier one.

    Raises:
        MalformedMessageError: if one can't be an identity.
    """
    wire = message.fields.get("chain")
    if wire is None:
        return Marks()
    chain = Fields(wire, where="save field 'chain'")
    save, since = chain.text("save"), chain.text("since")
    if not is_identity(save) or not (since == "" or is_identity(since)):
        raise MalformedMessageError(
            where="save field 'chain'", rule="needs identities of saves"
        )
    return Marks(save, since, "checkpoints" if choice is None else "exports")


def _name_of(name: Any, field: str = "cut") -> str:
    if type(name) is not str or len(name) > _MAX_NAME:
        rule = f"must be a string of at most {_MAX_NAME} characters"
        raise MalformedMessageError(where=f"field {field!r}", rule=rule)
    return name


def _targets_of(wire: Any) -> Mapping[Source, int]:
    """Read ``[[worker, incarnation, sequence], ...]``.

    Raises:
        MalformedMessageError: if it is anything else.
    """
    targets: dict[Source, int] = {}
    for each in wire if type(wire) is list else [None]:
        match each:
            case [int(worker), int(incarnation), int(sequence)]:
                targets[worker, incarnation] = sequence
            case _:
                rule = "must be a list of [worker, incarnation, sequence]"
                raise MalformedMessageError(where="hold field 'targets'", rule=rule)
    return targets
