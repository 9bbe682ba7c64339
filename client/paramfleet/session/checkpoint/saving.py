"""``fleet.save_persistables``, ``load_model``, ``save_inference_model``.

A checkpoint is written to a temporary name beside its own and renamed when every
part is on the disk: a folder of that name is always whole. The first worker acts;
in the others the functions return at once, so a script may call them everywhere
or in the first worker only. ``dirname`` must be on a file system that all
pservers and the first worker share.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paramfleet.config.errors import CallOrderError
from paramfleet.model_state.one_checkpoint import folder_to_load
from paramfleet.model_state.plain import unpack
from paramfleet.model_state.saved_state import buffers_to_load, plain_state
from paramfleet.serving.manifest import Release
from paramfleet.serving.unknown import Policy, UnknownOf, chosen_of
from paramfleet.session.backends.resuming import (
    taking_progress,
)
from paramfleet.session.checkpoint.background import BackgroundSaves
from paramfleet.session.checkpoint.cuts import ATTEMPTS
from paramfleet.session.checkpoint.exports.chain import ExportChain, PickedHere
from paramfleet.session.checkpoint.exports.modes import (
    BATCH_MODEL,
    NoBaseError,
    check_mode,
    kind_of_mode,
)
from paramfleet.session.checkpoint.exports.reading import sparse_tables, table_pieces
from paramfleet.session.checkpoint.exports.writing import (
    Held,
    Pick,
    PickedByPservers,
    finish_export,
    warn_of_empty,
    write_rows,
)
from paramfleet.session.checkpoint.job_save import Beside, Chain, JobSave
from paramfleet.session.checkpoint.local_state import export_tables, tables_to_load
from paramfleet.session.checkpoint.numbered import (
    begin_numbered,
    clear_left,
    end_numbered,
    newest_in,
)
from paramfleet.session.checkpoint.pserver_load import (
    LoadReport,
    load_everywhere,
    log_left_out,
)
from paramfleet.session.checkpoint.replaceable import folder_to_save
from paramfleet.session.checkpoint.whole_folders import (
    Owner,
    clear_own,
    discard,
    end_owning,
    give_name,
    naming,
    own,
    temporary_beside,
)
from paramfleet.session.registered import SavedProgress
from paramfleet.session.saved_progress import read_progress
from paramfleet.session.session import Session
from paramfleet.tables.sparse import tables_of
from paramfleet.training.job import Job, pull_dense
from paramfleet.training.load_notes import note_differences
from paramfleet.training.modes.base import Mode
from paramfleet.training.modes.local import LocalMode
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.checkpoint.cuts import Cut, SaveGoneError
from paramfleet_shared.checkpoint.increments import Base
from paramfleet_shared.checkpoint.manifest import (
    CheckpointWriteError,
    Manifest,
    write_manifest,
    write_part,
)
from paramfleet_shared.checkpoint.one_manifest import one_manifest
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.files.folders import check_folder_name
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.tables.rows.choosing import Choice
from paramfleet_shared.values.texts import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paramfleet.session.checkpoint.group.checkpoints import GroupCheckpoints
    from paramfleet.tables.dense import DenseBlock

__all__ = ["InferenceAddressError", "KeepError", "NamedSave", "Saving"]

log = logging.getLogger(__name__)


class KeepError(ContractError):
    """Checkpoints are to be kept in a number that is none."""

    code = "contract.keep"
    value: str
    sentence = (
        "save_persistables(keep={value}): give a whole number of at least 1, or leave it out"
    )


class InferenceAddressError(ContractError):
    """What inference needs is to be saved to an address."""

    code = "contract.inference_address"
    path: str
    sentence = (
        "save_inference_model({path!r}) writes to folders of this machine's file system only: "
        "save to one, and copy the folder there, its manifest.json last"
    )


_WITH_TORCH = "save model.state_dict() and optimizer.state_dict() with torch.save in worker 0"


class Saving:
    """The saving functions of one session.

    Args:
        session: Whose tables.
        clock: For how long that took.
    """

    def __init__(self, session: Session, clock: Clock | None = None) -> None:
        self._session = session
        self._clock = clock or SystemClock()
        self.background = BackgroundSaves(self._clock)
        """Saves that nobody waits for."""
        self._exports = ExportChain()

    @property
    def owner(self) -> Owner | None:
        """Return the run of the job that this worker is in; None alone."""
        job = self._session.job
        if job is None or not job.communicator.session.run_id:
            return None
        session = job.communicator.session
        return Owner(session.job, session.run_id)

    def save_persistables(
        self, dirname: str | Path, *, keep: int | None = None, mode: int = 0
    ) -> Cut | None:
        """Save all tables with optimizer states, and buffers, to continue the training later.

        What this worker has queued is pushed first. Other workers may continue to train: the
        pservers hold their pushes until all tables are written as of one moment. Buffers and
        extra states are this worker's: what all agreed on, after ``finish_training`` or
        ``average_buffers``. What a checkpoint can't hold of them is named in the manifest.

        In collective mode every worker calls it after the same step, and returns when the
        checkpoint is whole. It has the model, the optimizer with LocalSGD's own state, what is
        registered, and the states of each worker's random generators.

        Args:
            dirname: The checkpoint's folder. An empty one, a checkpoint or an export of that
                name is replaced, if it holds nothing else; anything else stays. In a job with
                servers it must be below one of the pservers' ``checkpoint_dirs``.
            keep: ``dirname`` has the checkpoints in folders of their own,
                ``<number>-step-<step>``, and a link ``latest``; so many of the newest stay.
            mode: Fleet's: 0 for a checkpoint, 3 for a batch model, which is one, too. Tables
                whose accessor counts days by saves begin another day after mode 3, so every
                worker calls it then, in sync between the same two steps.

        Returns:
            Whether it is a consistent cut, why not, and for how long pushes were held: what
            its manifest says, too. None in other workers than the first.

        Raises:
            CallOrderError: before ``distributed_optimizer``; in a job after ``stop_worker``; in
                collective mode between batches that are merged.
            SaveModeError: if ``mode`` is another one.
            KeepError: if ``keep`` is no whole number of at least 1.
            NotStartedError: in the first worker of a job, before ``init_worker``.
            StateNotSavedError: in collective mode, if a state isn't of tensors and plain
                values.
            LoadIncompleteError: after a load that succeeded in part.
            FolderNameError: if no folder can have that name, or what has it must stay.
            FolderNotAllowedError: if the pservers may not save there.
            CheckpointWriteError: if the system refuses; nothing of that name is changed.
        """
        if keep is not None and (type(keep) is not int or keep < 1):
            raise KeepError(value=shown(keep))
        ends_day = check_mode("save_persistables", mode) == BATCH_MODEL
        if (group := self._group("save_persistables")) is not None:
            return group.save(dirname, keep=keep)
        if self._session.optimizer is not None:
            self._session.optimizer.check_loaded()
        check_folder_name(str(dirname))
        if not self._session.is_first_worker():
            self._end_day(ends=ends_day)
            return None
        self.background.settle()
        if keep is not None:
            clear_left(place_of(dirname), owner=self.owner)  # none is being written here
            steps = 0 if self._session.optimizer is None else self._session.optimizer.num_steps
            dirname = begin_numbered(place_of(dirname), step=steps)
        final = self._folder_to_save(dirname)
        cut = self._save(final, ends_day=ends_day)
        if keep is not None:
            end_numbered(final, keep=keep)
        self._end_day(ends=ends_day)
        return cut

    def _end_day(self, *, ends: bool) -> None:
        """Begin another day of tables that count days by saves, if one ends."""
        if ends and (optimizer := self._session.optimizer) is not None:
            for table, _ in optimizer.tables.sparse:
                table.day += table.counts_days

    def _folder_to_save(self, dirname: str | Path) -> Path:
        """Return the folder of a save; raises as ``folder_to_save``."""
        clear_own(place_of(dirname), self.owner)
        return folder_to_save(dirname)

    def _save(self, final: Path, *, ends_day: bool) -> Cut:
        """Save, and wait until it is written; again if a pserver started again meanwhile."""
        write = partial(self._write, ends_day=ends_day)
        for _ in range(1, ATTEMPTS):
            try:
                return self._named(final, write).end()
            except SaveGoneError as error:
                facts = {"folder": str(final), "reason": str(error)}
                log.warning("worker.checkpoint_begins_again", extra=facts)
        return self._named(final, write).end()

    def begin(self, dirname: Path, *, chain: Chain | None = None) -> "NamedSave":
        """Begin a save that is written beside the training, if servers write it.

        Args:
            dirname: Its folder.
            chain: How it is chained to others, if it is.

        Raises:
            FleetError: as ``save_persistables``.
        """
        if self._session.optimizer is not None:
            self._session.optimizer.check_loaded()
        begin = partial(self._begin_writing, chain=chain)
        return self._named(self._folder_to_save(dirname), begin)

    def _named(self, final: Path, begin: "Callable[[Path], Manifest | JobSave]") -> "NamedSave":
        """Return a save that is known to the job once it is written; raises as it."""
        return NamedSave(final, begin, owner=self.owner, then=self._note_written)

    def _note_written(self, final: Path, manifest: Manifest) -> None:
        """Tell the job which checkpoint is the newest; any thread may call it."""
        steps = None if manifest.progress is None else manifest.progress.extra.get("steps")
        self._session.progress.note(saved={"folder": str(final), "step": steps})

    def load_model(self, dirname: str | Path) -> list[str]:
        """Take every table and buffer from a checkpoint, saved by any number of pservers.

        The first worker has it loaded; every worker calls this between the same steps,
        and returns with the loaded values. What any of them had not pushed is pushed
        before and so overwritten. Every worker's registered objects take their states first:
        if one can't, every worker gets the error, and nothing is changed. If one pserver
        refuses, the others may have loaded: every worker gets the error, keeps its registered
        objects as they were, and takes no step and saves nothing until a load has succeeded.

        In collective mode any number of workers loads what they have in common; what is each
        worker's own, as in LocalSGD, goes on where the number is equal, and else after a rule
        (docs/operations.md).

        Returns:
            The model's tables, buffers and extra states that the checkpoint doesn't have, and
            registered objects: they stay as they were. Warnings name them, too.

        Raises:
            BufferMismatchError: if a buffer has another shape or dtype.
            OtherTrainingError: in collective mode, if it is of another model, optimizer or
                strategy.
            RegisteredStateError: if a saved state isn't one of the object that is registered by
                its name, in any of the workers.
            FolderNameError: if no folder can have that name.
            FolderNotAllowedError: if it isn't below one of the pservers' ``checkpoint_dirs``.
            ManifestError: if the folder isn't a checkpoint, or another one took its name
                during the load: load again.
            CheckpointDamagedError: if a file isn't what was saved.
            DenseParameterError: if the dense parameters have other names or shapes.
            DenseOrderError: if a job's optimizer has them in another order, or in other groups.
                One process loads them in any.
            SavedTableMismatchError: if a table of that name has another shape or other first
                values. Another optimizer takes the values and begins with new states: a
                warning names the tables.
        """
        if (group := self._group("load_model")) is not None:
            return group.load(dirname)
        check_folder_name(str(dirname))
        folder = folder_to_load(dirname)
        self.background.settle()
        job = self._session.job
        if job is None:
            return self._load_locally(folder)
        mode = self._running("load_model")
        if mode.passes is not None:
            mode.passes.check_no_pass("load_model")
            if mode.passes.is_behind:  # passes that followed it are in the pservers
                log.warning("worker.load_skipped", extra={"folder": str(folder)})
                return []
        self._come_together(mode)
        return self._load_together(job, folder, positions=True).missing

    def settle(self) -> None:
        """Return when the pservers have all that this worker has trained, and all is saved.

        Raises:
            CallOrderError: if no mode trains.
            FleetError: if it can't be sent, or the job failed.
        """
        self.background.settle()
        self._running("settle").flush()

    def come_together(self) -> None:
        """Send what waits, and wait for all workers, each of which is to load.

        Raises:
            FleetError: what is of this worker alone, as one that doesn't come.
        """
        self.background.settle()
        self._come_together(self._running("load_model"))

    def load_together(self, folder: Path) -> LoadReport:
        """Load behind ``come_together``, as ``load_model`` does; positions in data stay.

        Raises:
            FleetError: as ``load_model``: the same one in every worker.
        """
        job = self._session.job
        assert job is not None, "there are other workers"
        return self._load_together(job, folder, positions=False)

    def _come_together(self, mode: Mode) -> None:
        mode.flush()
        self._session.worker_barrier("fleet.load_model")  # no worker writes any more

    def _load_together(self, job: Job, folder: Path, *, positions: bool) -> LoadReport:
        optimizer = self._session.optimizer
        assert optimizer is not None, "its mode runs"
        backend = self._session.backend
        return load_everywhere(backend, job, optimizer, folder, positions=positions)

    def newest_checkpoint(self, dirname: str | Path) -> Path | None:
        """Return the newest of the checkpoints that ``save_persistables(..., keep=...)`` wrote.

        Every worker calls it, and gets what worker 0 finds; to begin or continue a job::

            if (newest := fleet.newest_checkpoint("checkpoints")) is not None:
                fleet.load_model(newest)

        Returns:
            Its folder; None if there is none.

        Raises:
            FolderNameError: if no folder can have that name.
            FleetError: in a job, if a worker is missing or the job failed.
        """
        check_folder_name(str(dirname))
        found = newest_in(place_of(dirname)) if self._session.is_first_worker() else None
        said = b"" if found is None else str(found).encode()
        answer = self._session.gather("fleet.newest_checkpoint", said)[0]
        return place_of(answer.decode()) if answer else None

    def save_inference_model(
        self,
        dirname: str | Path,
        *,
        unknown: UnknownOf = "initial",
        mode: int = 0,
        after: str | Path | None = None,
    ) -> None:
        """Save what inference needs, for ``fleet.serving.load(dirname, model)``.

        The files can be read without this package, too.
        ``dirname/model.pt`` is the model's ``state_dict`` (dense parameters, buffers as this
        worker has them, and plain extra states; ``torch.load(..., weights_only=True)``).
        ``dirname/rows.<table>.safetensors`` holds ``ids`` int64 [n], sorted, and ``rows``
        float32 [n, D] of each sparse table: row i belongs to id ``ids[i]``, so
        ``torch.searchsorted`` finds an id's place and
        ``torch.nn.Embedding.from_pretrained(rows)`` its row.
        ``dirname/manifest.json`` names the files, and says what other ids read.

        Args:
            dirname: The folder, not an address; what it replaces is as in
                ``save_persistables``. In a job it must be below one of the pservers'
                ``checkpoint_dirs``.
            unknown: What an id without a row reads when the model is served: ``"initial"``,
                the row that the job would read, made of the table's seed and the id;
                ``"zeros"``; or ``"constant"``, the initializer's value, the middle of its
                range or its mean. By table it may be a row of D numbers, too, and tables that
                aren't named keep ``"initial"``.
            mode: Fleet's: 0 for all rows. 2 for a *base*: of tables with an accessor the rows
                with a score of at least ``base_threshold`` that were seen in the last
                ``delta_keep_days``, of others all rows. 1 for a *delta*: of the same rows those
                whose score has grown by ``delta_threshold`` since they were written last, of
                other tables those that changed since the last base or delta, and the ids of
                rows that were removed since. A delta is no model by itself: its manifest names
                what it follows. What was written is subtracted from ``delta_score``.
            after: The folder of the base or delta that a delta follows; the last one that
                this worker saved if it isn't given.

        Raises:
            CallOrderError: before ``distributed_model`` and ``init_worker``.
            SaveModeError: if ``mode`` is another one.
            NoBaseError: if a delta follows nothing, or what changed since isn't known: after
                a load, or if a pserver started again.
            ExportError: if ``after`` is no export.
            LoadIncompleteError: after a load that succeeded in part.
            FolderNameError: if no folder can have that name, or what has it must stay.
            FolderNotAllowedError: if the pservers may not save there.
            InferenceAddressError: if it is an address.
            UnknownRowError: if ``unknown`` is wrong.
            StateNumbersError: if running statistics aren't finite, or another buffer has NaN.
            CheckpointWriteError: if the system refuses; nothing of that name is changed.
        """
        kind = kind_of_mode(check_mode("save_inference_model", mode))
        self._session.backend.check_served("save_inference_model", remedy=_WITH_TORCH)
        if self._session.optimizer is not None:
            self._session.optimizer.check_loaded()
        check_folder_name(str(dirname))
        if isinstance(place := place_of(dirname), Address):
            raise InferenceAddressError(path=str(place))
        if not self._session.is_first_worker():
            return
        model = self._session.model
        if model is None:
            remedy = "give the model to fleet.distributed_model() first"
            raise CallOrderError(function="save_inference_model", remedy=remedy)
        chosen = chosen_of(unknown, {t.name: t.dim for t in tables_of(model).values()})
        self.background.settle()
        final = folder_to_save(dirname)
        release = None if kind is None else self._exports.next(kind, final, after)
        parts, temporary = temporary_beside(final), temporary_beside(final)
        try:
            with naming(final):
                manifest, left_out = self._write_exported(parts, release, final)
                pick = self._pick(parts, manifest, release, left_out)
                held = self._export(model, parts, manifest, temporary, chosen, (release, pick))
            give_name(temporary, final)
            if release is not None:
                self._note_exported(release, held, parts, manifest)
                if release.kind == "base":
                    warn_of_empty(final, held, manifest)
        finally:
            shutil.rmtree(parts, ignore_errors=True)
            shutil.rmtree(temporary, ignore_errors=True)

    def _group(self, function: str) -> "GroupCheckpoints | None":
        """Return what saves and loads in collective mode; None in another.

        Raises:
            CallOrderError: after ``stop_worker``.
        """
        training = self._session.backend.collective
        if training is None:
            return None
        if self._session.stopped:
            remedy = "call it before fleet.stop_worker(), in every worker"
            raise CallOrderError(function=function, remedy=remedy)
        from paramfleet.session.checkpoint.group.checkpoints import GroupCheckpoints  # noqa: PLC0415 - slow

        return GroupCheckpoints(training, self._session.registered, self._clock)

    def _write(self, folder: Path, *, ends_day: bool = False) -> Manifest:
        """Write a whole checkpoint into ``folder``, with all states."""
        job = self._session.job
        if job is None:
            return self._write_locally(folder, ends_day=ends_day)
        self._running("save_persistables").flush()
        return self._begin_in_job(job, folder, ends_day=ends_day).end()

    def _write_exported(
        self, folder: Path, release: Release | None, final: Path
    ) -> tuple[Manifest, Mapping[str, int]]:
        """Write a checkpoint of the rows of an export, or of more.

        Returns:
            Its manifest, and how many rows of each table pservers left out.

        Raises:
            NoBaseError: if it isn't known what a delta has.
        """
        job, exports = self._session.job, self._exports
        knows, left_out = True, dict[str, int]()
        if job is None:
            manifest = self._write_locally(folder)
            if release is not None and release.kind == "delta":
                knows = exports.changes.knows(release.after)
        else:
            self._running("save_inference_model").flush()
            chain = None if release is None else self._chain_of(release)
            begun = self._begin_in_job(job, folder, goes_on=False, chain=chain)
            manifest, left_out = begun.end(), dict(begun.left_out)
            knows = chain is None or chain.base is None or begun.is_increment
        if not knows:
            reason = "it isn't known what changed since the export that this delta follows"
            raise NoBaseError(path=str(final), reason=reason)
        return manifest, left_out

    def _chain_of(self, release: Release) -> Chain:
        """Return how the pservers' part of an export is chained to others."""
        choice = Choice(release.kind, self._days())
        base = None
        if release.after:
            base = Base(save=release.after, folder=release.after)
        return Chain(release.export, base, choice)

    def _days(self) -> dict[str, int]:
        """Return which day it is, of tables with an accessor."""
        optimizer = self._session.optimizer
        tables = () if optimizer is None else optimizer.tables.sparse
        return {table.name: table.day for table, _ in tables if table.accessor is not None}

    def _pick(
        self,
        parts: Path,
        manifest: Manifest,
        release: Release | None,
        left_out: Mapping[str, int],
    ) -> Pick:
        """Return what says which rows of a checkpoint an export holds."""
        if release is None or self._session.job is not None:
            return PickedByPservers(parts, manifest, left_out)  # the pservers have chosen
        return PickedHere(Choice(release.kind, self._days()), self._exports.changes)

    def _note_exported(
        self, release: Release, held: list[Held], parts: Path, manifest: Manifest
    ) -> None:
        """Subtract what an export has, which its folder's name makes valid."""
        self._exports.latest = release
        optimizer = self._session.optimizer
        assert optimizer is not None, "its mode runs"
        if self._session.job is None:
            every = (
                (spec.name, table_pieces(parts, manifest, spec))
                for spec in sparse_tables(manifest)
            )
            self._exports.changes.take(release.export, every)
        tables = {table.name: table for table, _ in optimizer.tables.sparse}
        for each in held:
            if each.table in tables:
                for ids, amounts in each.pieces():
                    optimizer.running.discount(tables[each.table], ids, amounts)

    def _begin_writing(self, folder: Path, *, chain: Chain | None) -> "Manifest | JobSave":
        """Begin to write a checkpoint into ``folder``; alone, write it.

        What this worker has queued isn't waited for: it is in no table then, as that of the
        others, and comes later.
        """
        job = self._session.job
        if job is None:
            return self._write_locally(folder)
        if (mode := self._running("save_persistables")).passes is not None:
            mode.flush()
        return self._begin_in_job(job, folder, goes_on=True, chain=chain)

    def _begin_in_job(
        self,
        job: Job,
        folder: Path,
        *,
        goes_on: bool = True,
        chain: Chain | None = None,
        ends_day: bool = False,
    ) -> JobSave:
        model, optimizer = self._session.model, self._session.optimizer
        assert optimizer is not None, "its mode runs"

        def beside(answer: Message) -> Beside:
            blocks = [block for block, _ in optimizer.tables.dense]
            progress = None
            if goes_on:
                progress = self._progress(optimizer, answer, ends_day=ends_day)
            return Beside.of(model, blocks, progress)

        asked = self._asked_for(optimizer) if goes_on else {}
        return JobSave.begin(
            job,
            folder,
            in_sync=optimizer.running.in_step,
            more={**asked, **optimizer.running.saved_at()},
            beside=beside,
            chain=chain,
        )

    def _export(
        self,
        model: torch.nn.Module,
        parts: Path,
        manifest: Manifest,
        folder: Path,
        unknown: dict[str, Policy | list[float]],
        what: tuple[Release | None, Pick],
    ) -> list[Held]:
        """Write what inference needs into ``folder``, of a checkpoint; return what it has.

        Raises:
            CheckpointWriteError: if the system refuses.
        """
        try:
            release, pick = what
            folder.mkdir(parents=True)
            tables, held = write_rows(parts, manifest, folder, unknown, pick)
            self._with_served_dense(model, folder / "model.pt")
            finish_export(folder, tables, release)
        except (OSError, RuntimeError) as error:  # torch's is a RuntimeError
            raise CheckpointWriteError(path=str(folder), reason=str(error)) from error
        return held

    def _asked_for(self, optimizer: DistributedOptimizer) -> dict[str, Any]:
        """Return what the workers are asked for while a checkpoint is written."""
        asked: dict[str, Any] = {}
        if specs := optimizer.own_states:
            asked["states"] = [spec.to_wire() for spec in specs]
        if self._session.registered.has_positions:
            step = optimizer.num_steps if optimizer.running.in_step else None
            asked["positions"] = {"step": step}
        return asked

    def _progress(
        self, optimizer: DistributedOptimizer, answer: Message | None, *, ends_day: bool = False
    ) -> SavedProgress:
        """Return what is saved beside the model, with what the other workers say of theirs."""
        workers = self._session.worker_num()
        progress = self._session.registered.progress(steps=optimizer.num_steps, workers=workers)
        days = optimizer.counted_days()
        progress.days = {name: day + ends_day for name, day in days.items()}  # of who goes on
        if answer is not None:
            for rank, why in answer.fields["without"]:
                progress.not_saved[f"positions/{rank}"] = why
            for name, packed in answer.tensors.items():
                rank = int(name.removeprefix("positions."))
                progress.positions.setdefault(rank, unpack(packed.tobytes()))
        return progress

    def _write_locally(self, folder: Path, *, ends_day: bool = False) -> Manifest:
        mode, optimizer = self._local("save_persistables")
        mode.flush()
        began = self._clock.monotonic()
        tables, files = [], []
        saved = export_tables(
            optimizer.inner, optimizer.tables, mode.steppers, steps=optimizer.num_steps
        )
        for number, (table, part) in enumerate(saved):
            tables.append(table)
            name = f"table{number:03d}.safetensors"
            files.append(write_part(folder, name, table.spec, part))
        blocks = [block for block, _ in optimizer.tables.dense]
        progress = self._progress(optimizer, None, ends_day=ends_day)
        beside = Beside.of(self._session.model, blocks, progress)
        cut = Cut(consistent=True, paused_s=round(self._clock.monotonic() - began, 3))
        manifest = Manifest(tables=tuple(tables), files=tuple(files), cut=cut)
        manifest = beside.write(folder, manifest)
        write_manifest(folder, manifest)
        return manifest

    def _load_locally(self, folder: Path) -> list[str]:
        mode, optimizer = self._local("load_model")
        mode.passes.check_no_pass("load_model")
        with one_manifest(folder) as manifest:
            buffers = buffers_to_load(self._session.model, folder, manifest)
            progress = read_progress(folder, manifest)
            tables = tables_to_load(
                optimizer.inner,
                optimizer.tables,
                mode.steppers,
                folder,
                manifest,
                model=self._session.model,
            )
        if progress is None:  # as of before these were saved
            progress = SavedProgress(steps=tables.steps)
        with ExitStack() as changing:
            with taking_progress(
                self._session.backend, optimizer, progress, str(folder)
            ) as not_resumed:
                changing.enter_context(optimizer.loading(str(folder)))
                self._exports.changes.forget()
                tables.install()
            log_left_out(tables.left_out)
            differences = note_differences(
                optimizer, manifest, folder, trained_by=tables.trained_by
            )
            missing = [*differences, *buffers.install(), *not_resumed]
            optimizer.end_load()
        return missing

    def _with_served_dense(self, model: torch.nn.Module, path: Path) -> None:
        """Write the state_dict with the pservers' dense values, and keep this worker's own."""
        job, optimizer = self._session.job, self._session.optimizer
        blocks: list[DenseBlock] = []
        own: list[NDArray[np.float32]] = []
        if job is not None and optimizer is not None:
            blocks = [block for block, _ in optimizer.tables.dense]
            own = [block.values() for block in blocks]
            for block, values in zip(blocks, pull_dense(job, blocks), strict=True):
                block.install(values)
        try:
            torch.save(plain_state(model), path)
        finally:
            for block, values in zip(blocks, own, strict=True):
                block.install(values)

    def _running(self, function: str) -> Mode:
        """Return the mode that trains.

        Raises:
            CallOrderError: if none does.
        """
        if self._session.optimizer is None or self._session.stopped:
            remedy = "call it between fleet.init_worker() and fleet.stop_worker()"
            raise CallOrderError(function=function, remedy=remedy)
        return self._session.optimizer.running

    def _local(self, function: str) -> tuple[LocalMode, DistributedOptimizer]:
        mode, optimizer = self._running(function), self._session.optimizer
        if not isinstance(mode, LocalMode) or optimizer is None:
            raise CallOrderError(function=function, remedy="call fleet.init_worker() first")
        return mode, optimizer


class NamedSave:
    """A save of which the folder gets its name when all is written.

    Args:
        final: The folder: an absolute path.
        begin: Begins to write into another, or writes all.
        owner: Whose mark it has at an address; None outside of a job.
        then: Called with the folder and its manifest when all is written.

    Raises:
        FolderNameError: if anything is at its address.
        FleetError: as ``begin``; nothing that it wrote is left.
    """

    def __init__(
        self,
        final: Path,
        begin: Callable[[Path], "Manifest | JobSave"],
        *,
        owner: Owner | None = None,
        then: Callable[[Path, Manifest], None] | None = None,
    ) -> None:
        self._final = final
        self._then = then
        self._temporary = temporary_beside(final)
        self._mark: Owner | None = None
        with self._naming():
            self._mark = own(self._temporary, owner)
            self._begun = begin(self._temporary)

    @property
    def is_beside(self) -> bool:
        """Return whether it is written beside the training."""
        return isinstance(self._begun, JobSave)

    @property
    def is_increment(self) -> bool:
        """Return whether only what changed since another one is written."""
        return isinstance(self._begun, JobSave) and self._begun.is_increment

    def end(self) -> Cut:
        """Wait until all is written, and give the folder its name.

        Raises:
            FleetError: if it failed; nothing is left.
        """
        with self._naming():
            begun = self._begun
            manifest = begun.end() if isinstance(begun, JobSave) else begun
            give_name(self._temporary, self._final)
        end_owning(self._final, self._mark)
        if self._temporary != self._final:
            discard(self._temporary)
        if self._then is not None:
            self._then(self._final, manifest)
        return _logged(self._final, manifest)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Name the folder in errors, and leave nothing of it behind them."""
        try:
            with naming(self._final):
                yield
        except BaseException:
            discard(self._temporary, self._mark)
            raise


def _logged(final: Path, manifest: Manifest) -> Cut:
    """Log what was written, and return of what moment it is."""
    cut = manifest.cut
    assert cut is not None, "it was just written"
    if manifest.gathered is not None and manifest.gathered.left_out:
        lacking = {str(rank): why for rank, why in manifest.gathered.left_out.items()}
        facts = {"folder": str(final), "workers": lacking}
        log.warning("worker.states_not_gathered", extra=facts)
    result = {"folder": str(final), "paused_s": cut.paused_s, "reason": cut.reason}
    if cut.consistent:
        log.info("worker.checkpoint_written", extra=result)
    else:
        log.warning("worker.checkpoint_not_a_consistent_cut", extra=result)
    return cut
