"""One checkpoint of a job with servers: begun between two steps, ended by any thread.

What worker 0 adds to the pservers' files is copied when it begins: buffers, steps, schedules,
positions. So the training goes on while all is written.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paramfleet.model_state.saved_state import state_to_write
from paramfleet.session.checkpoint.cuts import Begun, begin_everywhere, end_everywhere
from paramfleet.session.registered import SavedProgress
from paramfleet.session.saved_progress import progress_to_write
from paramfleet.tables.dense_parameters import parameters_of
from paramfleet_shared.checkpoint.gathered import GatheredStates
from paramfleet_shared.checkpoint.increments import Base, Increment, RemovedIds
from paramfleet_shared.checkpoint.manifest import (
    Manifest,
    SavedFile,
    SavedTable,
    write_manifest,
)
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.choosing import Choice
from paramfleet_shared.values.spans import MissedUpdates

if TYPE_CHECKING:
    import torch

    from paramfleet.model_state.saved_state import StateToWrite
    from paramfleet.tables.dense import DenseBlock
    from paramfleet.training.job import Job
    from paramfleet_shared.checkpoint.saved_parameters import DenseParameters

__all__ = ["Beside", "Chain", "JobSave"]


class Beside(NamedTuple):
    """What worker 0 adds to the tables, as it was when the save began."""

    module: "StateToWrite | None"
    parameters: "DenseParameters"
    progress: "StateToWrite | None"

    @classmethod
    def of(
        cls,
        model: "torch.nn.Module | None",
        blocks: "Sequence[DenseBlock]",
        progress: SavedProgress | None,
    ) -> "Beside":
        """Copy it."""
        return cls(
            None if model is None else state_to_write(model),
            {} if model is None else parameters_of(model, blocks),
            None if progress is None else progress_to_write(progress),
        )

    def write(self, folder: Path, manifest: Manifest) -> Manifest:
        """Write its files, and return a manifest that names them.

        Raises:
            CheckpointWriteError: if the system refuses.
        """
        if self.progress is not None:
            manifest = replace(manifest, progress=self.progress.write(folder))
        if self.module is not None:
            module = self.module.write(folder)
            manifest = replace(manifest, module=module, parameters=self.parameters)
        return manifest


class Chain(NamedTuple):
    """How a checkpoint is chained to others."""

    save: str
    """Its own identity: what others are increments of."""
    base: Base | None = None
    """What it may be an increment of; None makes it whole."""
    choice: Choice | None = None
    """Which rows it holds, if it is an export."""

    def to_wire(self) -> dict[str, Any]:
        """Return fields of ``save``."""
        since = "" if self.base is None else self.base.save
        fields: dict[str, Any] = {"chain": {"save": self.save, "since": since}}
        if self.choice is not None:
            fields["choice"] = self.choice.to_wire()
        return fields


class JobSave:
    """A save of which every pserver has its image.

    Args:
        job: What is saved.
        folder: Where its files are written, without a name of its own as yet.
        begun: How it began.
        beside: What worker 0 adds.
        chain: How it is chained to others; None if none will be an increment of it.
    """

    def __init__(
        self, job: "Job", folder: Path, begun: Begun, beside: Beside, chain: Chain | None = None
    ) -> None:
        self._job = job
        self._chain = chain
        self._folder = folder
        self._begun = begun
        self._beside = beside
        self.left_out: Counter[str] = Counter()
        """After ``end``: rows of each table that the choice of an export left out."""

    @classmethod
    def begin(
        cls,
        job: "Job",
        folder: Path,
        *,
        in_sync: bool,
        more: dict[str, Any],
        beside: Callable[[Message], Beside],
        chain: Chain | None = None,
    ) -> "JobSave":
        """Have every pserver take its image; the training thread waits for no more than that.

        Args:
            job: What is saved.
            folder: Where to: an absolute path.
            in_sync: Whether the mode is sync.
            more: Fields of ``save``.
            beside: Returns what worker 0 adds, given the first pserver's answer.
            chain: As of ``JobSave``.

        Raises:
            FleetError: if one can't, or the job failed.
        """
        communicator = job.communicator
        begun = communicator.wait(
            begin_everywhere(
                job.pservers,
                job.author,
                str(folder),
                in_sync=in_sync,
                clock=communicator.clock,
                more=more if chain is None else {**more, **chain.to_wire()},
            )
        )
        return cls(job, folder, begun, beside(begun.answers[0]), chain)

    @property
    def is_increment(self) -> bool:
        """Return whether only what changed since another one is written."""
        return self._begun.is_increment

    def end(self) -> Manifest:
        """Wait until all is written, the manifest last; any thread may call it.

        Raises:
            SaveGoneError: if a pserver started again meanwhile: nothing else is wrong.
            FleetError: if a pserver, or the system here, refuses.
        """
        answers = self._job.communicator.wait(end_everywhere(self._job.pservers, self._begun))
        manifest = replace(_collect(answers), cut=self._begun.cut)
        for answer in answers:
            self.left_out.update(answer.fields["left_out"])
        if (chain := self._chain) is not None:
            manifest = replace(manifest, save=chain.save)
            if self._begun.is_increment and chain.base is not None:
                increment = Increment(base=chain.base, removed=_removed(answers))
                manifest = replace(manifest, increment=increment)
        manifest = self._beside.write(self._folder, manifest)
        write_manifest(self._folder, manifest)
        return manifest


def _removed(answers: Iterable[Message]) -> tuple[RemovedIds, ...]:
    wires = [wire for answer in answers for wire in answer.fields["removed"]]
    return tuple(RemovedIds.from_wire(wire) for wire in wires)


def _collect(answers: Iterable[Message]) -> Manifest:
    """Put the pservers' lists of files together.

    A table's version is the least of its parts': what all of them hold for sure. Of a dense
    one each part counts the updates that its own values have missed.
    """
    tables: dict[str, SavedTable] = {}
    files: list[SavedFile] = []
    gathered = GatheredStates()
    for answer in answers:
        gathered = gathered.and_those(GatheredStates.from_wire(answer.fields["gathered"]))
        files += [SavedFile.from_wire(wire) for wire in answer.fields["files"]]
        for wire in answer.fields["tables"]:
            table = SavedTable.from_wire(wire)
            known = tables.setdefault(table.spec.name, table)
            if known is not table:
                parts = [(0, known.missed), (0, table.missed)]
                least = table if table.version < known.version else known
                tables[table.spec.name] = replace(least, missed=MissedUpdates.joined(parts))
    return Manifest(
        tables=tuple(tables.values()),
        files=tuple(files),
        gathered=gathered if gathered.workers or gathered.left_out else None,
    )
