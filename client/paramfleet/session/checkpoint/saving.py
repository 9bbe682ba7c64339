"""``fleet.save_persistables``, ``load_model``, ``save_inference_model``.

A checkpoint is written to a temporary name beside its own and renamed when every
part is on the disk: a folder of that name is always whole. The first worker acts;
in the others the functions return at once, so a script may call them everywhere
or in the first worker only. ``dirname`` must be on a file system that all
pservers and the first worker share.
"""

import logging
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paramfleet.config.errors import CallOrderError
from paramfleet.model_state.one_checkpoint import folder_to_load
from paramfleet.model_state.plain import unpack
from paramfleet.model_state.saved_state import buffers_to_load, plain_state, write_state
from paramfleet.serving.unknown import Policy, UnknownOf, chosen_of
from paramfleet.session.backends.resuming import (
    taking_progress,
)
from paramfleet.session.checkpoint.cuts import save_everywhere
from paramfleet.session.checkpoint.exporting import finish_export, write_rows
from paramfleet.session.checkpoint.local_state import export_tables, tables_to_load
from paramfleet.session.checkpoint.numbered import begin_numbered, end_numbered, newest_in
from paramfleet.session.checkpoint.pserver_load import load_everywhere, log_left_out
from paramfleet.session.checkpoint.replaceable import folder_to_save
from paramfleet.session.checkpoint.whole_folders import give_name, naming, temporary_beside
from paramfleet.session.registered import SavedProgress
from paramfleet.session.saved_progress import read_progress, write_progress
from paramfleet.session.session import Session
from paramfleet.tables.dense_parameters import parameters_of
from paramfleet.tables.sparse import tables_of
from paramfleet.training.job import pull_dense
from paramfleet.training.load_notes import note_differences
from paramfleet.training.modes.base import Mode
from paramfleet.training.modes.local import LocalMode
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.checkpoint.gathered import GatheredStates
from paramfleet_shared.checkpoint.manifest import (
    CheckpointWriteError,
    Manifest,
    SavedFile,
    SavedTable,
    write_manifest,
    write_part,
)
from paramfleet_shared.checkpoint.one_manifest import one_manifest
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.folders import check_folder_name
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.values.texts import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paramfleet.session.checkpoint.group.checkpoints import GroupCheckpoints
    from paramfleet.tables.dense import DenseBlock

__all__ = ["KeepError", "Saving"]

log = logging.getLogger(__name__)


class KeepError(ContractError):
    """Checkpoints are to be kept in a number that is none."""

    code = "contract.keep"
    value: str
    sentence = (
        "save_persistables(keep={value}): give a whole number of at least 1, or leave it out"
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

    def save_persistables(self, dirname: str | Path, *, keep: int | None = None) -> Cut | None:
        """Save every table with its optimizer state, and buffers, so that training can go on.

        What this worker has queued is pushed first. Other workers may go on training: the
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

        Returns:
            Whether it is a consistent cut, why not, and for how long pushes were held: what
            its manifest says, too. None in other workers than the first.

        Raises:
            CallOrderError: before ``distributed_optimizer``; in a job after ``stop_worker``; in
                collective mode between batches that are merged.
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
        if (group := self._group("save_persistables")) is not None:
            return group.save(dirname, keep=keep)
        if self._session.optimizer is not None:
            self._session.optimizer.check_loaded()
        check_folder_name(str(dirname))
        if not self._session.is_first_worker():
            return None
        if keep is not None:
            steps = 0 if self._session.optimizer is None else self._session.optimizer.num_steps
            dirname = begin_numbered(Path(dirname), step=steps)
        final = folder_to_save(dirname)
        temporary = temporary_beside(final)
        try:
            with naming(final):
                manifest = self._write(temporary, goes_on=True)
            give_name(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if keep is not None:
            end_numbered(final, keep=keep)
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
        job = self._session.job
        if job is None:
            return self._load_locally(folder)
        mode = self._running("load_model")
        if mode.passes is not None:
            mode.passes.check_no_pass("load_model")
            if mode.passes.is_behind:  # passes that followed it are in the pservers
                log.warning("worker.load_skipped", extra={"folder": str(folder)})
                return []
        mode.flush()
        self._session.worker_barrier("fleet.load_model")  # no worker writes any more
        optimizer = self._session.optimizer
        assert optimizer is not None, "its mode runs"
        return load_everywhere(self._session.backend, job, optimizer, folder)

    def newest_checkpoint(self, dirname: str | Path) -> Path | None:
        """Return the newest of the checkpoints that ``save_persistables(..., keep=...)`` wrote.

        Every worker calls it, and gets what worker 0 finds; to begin a job, or to go on::

            if (newest := fleet.newest_checkpoint("checkpoints")) is not None:
                fleet.load_model(newest)

        Returns:
            Its folder; None if there is none.

        Raises:
            FolderNameError: if no folder can have that name.
            FleetError: in a job, if a worker is missing or the job failed.
        """
        check_folder_name(str(dirname))
        found = newest_in(Path(dirname)) if self._session.is_first_worker() else None
        said = b"" if found is None else str(found).encode()
        answer = self._session.gather("fleet.newest_checkpoint", said)[0]
        return Path(answer.decode()) if answer else None

    def save_inference_model(
        self, dirname: str | Path, *, unknown: UnknownOf = "initial"
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
            dirname: The folder; what it replaces is as in ``save_persistables``. In a job it
                must be below one of the pservers' ``checkpoint_dirs``.
            unknown: What an id without a row reads when the model is served: ``"initial"``,
                the row that the job would read, made of the table's seed and the id;
                ``"zeros"``; or ``"constant"``, the initializer's value, the middle of its
                range or its mean. By table it may be a row of D numbers, too, and tables that
                aren't named keep ``"initial"``.

        Raises:
            CallOrderError: before ``distributed_model`` and ``init_worker``.
            LoadIncompleteError: after a load that succeeded in part.
            FolderNameError: if no folder can have that name, or what has it must stay.
            FolderNotAllowedError: if the pservers may not save there.
            UnknownRowError: if ``unknown`` is wrong.
            StateNumbersError: if running statistics aren't finite, or another buffer has NaN.
            CheckpointWriteError: if the system refuses; nothing of that name is changed.
        """
        self._session.backend.check_served("save_inference_model", remedy=_WITH_TORCH)
        if self._session.optimizer is not None:
            self._session.optimizer.check_loaded()
        check_folder_name(str(dirname))
        if not self._session.is_first_worker():
            return
        model = self._session.model
        if model is None:
            remedy = "give the model to fleet.distributed_model() first"
            raise CallOrderError(function="save_inference_model", remedy=remedy)
        chosen = chosen_of(unknown, {t.name: t.dim for t in tables_of(model).values()})
        final = folder_to_save(dirname)
        parts, temporary = temporary_beside(final), temporary_beside(final)
        try:
            with naming(final):
                manifest = self._write(parts, goes_on=False)
                self._export(model, parts, manifest, temporary, chosen)
            give_name(temporary, final)
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

    def _write(self, folder: Path, *, goes_on: bool) -> Manifest:
        """Write a whole checkpoint into ``folder``, with all states if training may go on."""
        job, model, optimizer = (
            self._session.job,
            self._session.model,
            self._session.optimizer,
        )
        if job is None:
            manifest = self._write_locally(folder)
        else:
            self._running("save_persistables").flush()
            assert optimizer is not None, "its mode runs"
            saving = save_everywhere(
                job.pservers,
                job.author,
                str(folder),
                in_sync=optimizer.running.in_step,
                clock=job.communicator.clock,
                more={
                    **(self._asked_for(optimizer) if goes_on else {}),
                    **optimizer.running.saved_at(),
                },
            )
            answers, cut = job.communicator.wait(saving)
            manifest = replace(_collect(answers), cut=cut)
            if goes_on:
                progress = self._progress(optimizer, answers[0])
                manifest = replace(manifest, progress=write_progress(folder, progress))
        if model is not None:
            blocks = [] if optimizer is None else [block for block, _ in optimizer.tables.dense]
            parameters = parameters_of(model, blocks)
            module = write_state(folder, model)
            manifest = replace(manifest, module=module, parameters=parameters)
        write_manifest(folder, manifest)
        return manifest

    def _export(
        self,
        model: torch.nn.Module,
        parts: Path,
        manifest: Manifest,
        folder: Path,
        unknown: dict[str, Policy | list[float]],
    ) -> None:
        """Write what inference needs into ``folder``, of a whole checkpoint.

        Raises:
            CheckpointWriteError: if the system refuses.
        """
        try:
            folder.mkdir(parents=True)
            tables = write_rows(parts, manifest, folder, unknown)
            self._with_served_dense(model, folder / "model.pt")
            finish_export(folder, tables)
        except (OSError, RuntimeError) as error:  # torch's is a RuntimeError
            raise CheckpointWriteError(path=str(folder), reason=str(error)) from error

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
        self, optimizer: DistributedOptimizer, answer: Message | None
    ) -> SavedProgress:
        """Return what is saved beside the model, with what the other workers say of theirs."""
        workers = self._session.worker_num()
        progress = self._session.registered.progress(steps=optimizer.num_steps, workers=workers)
        if answer is not None:
            for rank, why in answer.fields["without"]:
                progress.not_saved[f"positions/{rank}"] = why
            for name, packed in answer.tensors.items():
                rank = int(name.removeprefix("positions."))
                progress.positions.setdefault(rank, unpack(packed.tobytes()))
        return progress

    def _write_locally(self, folder: Path) -> Manifest:
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
        progress = write_progress(folder, self._progress(optimizer, None))
        cut = Cut(consistent=True, paused_s=round(self._clock.monotonic() - began, 3))
        return Manifest(tables=tuple(tables), files=tuple(files), cut=cut, progress=progress)

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


def _collect(answers: Iterable[Message]) -> Manifest:
    """Put the pservers' lists of files together.

    A table's version is the least of its parts': what all of them hold for sure.
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
            if table.version < known.version:
                tables[table.spec.name] = table
    return Manifest(
        tables=tuple(tables.values()),
        files=tuple(files),
        gathered=gathered if gathered.workers or gathered.left_out else None,
    )
