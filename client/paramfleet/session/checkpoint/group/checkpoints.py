"""``fleet.save_persistables`` and ``fleet.load_model`` of a job without servers.

Every worker writes its file into a folder under a temporary name; when all are on the disk,
worker 0 writes the manifest and gives the folder its name. Workers exchange results through the
store of the rendezvous, as barriers do: an error in one is an error in all, and one that
doesn't come is named. The folder is on a file system that all workers share.
"""

import logging
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paramfleet.model_state.one_checkpoint import folder_to_load
from paramfleet.model_state.random_states import random_states, restore_random
from paramfleet.session.all_or_none import NOT_FITTING
from paramfleet.session.checkpoint.group.manifest import (
    read_group_manifest,
    write_group_manifest,
)
from paramfleet.session.checkpoint.group.part import manifest_of, write_worker
from paramfleet.session.checkpoint.group.reading import Prepared, prepared
from paramfleet.session.checkpoint.group.together import in_all
from paramfleet.session.checkpoint.group.worker_state import made_of, ready, taken_state
from paramfleet.session.checkpoint.numbered import begin_numbered, clear_left, end_numbered
from paramfleet.session.checkpoint.replaceable import folder_to_save
from paramfleet.session.checkpoint.whole_folders import give_name, naming, temporary_beside
from paramfleet.session.registered import Registered
from paramfleet.training.collective.training import CollectiveTraining
from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.checkpoint.manifest import MANIFEST, ManifestError
from paramfleet_shared.files.folders import check_folder_name
from paramfleet_shared.system.clock import Clock

__all__ = ["GroupCheckpoints"]

log = logging.getLogger(__name__)


class GroupCheckpoints:
    """Saves and loads what the workers of one job have; the training thread calls it.

    Args:
        training: This worker's.
        registered: What its script registered.
        clock: For how long that took.
    """

    def __init__(
        self, training: CollectiveTraining, registered: Registered, clock: Clock
    ) -> None:
        self._training = training
        self._world = training.world
        self._registered = registered
        self._clock = clock

    def save(self, dirname: str | Path, *, keep: int | None) -> Cut | None:
        """Save what all workers have; each of them calls it after the same step.

        Args:
            dirname: The checkpoint's folder, or with ``keep`` the one that has its folder.
            keep: How many of the newest stay there; None doesn't number them.

        Returns:
            In worker 0 how long it took; None in the others.

        Raises:
            CallOrderError: before model and optimizer are given, or between merged batches.
            FolderNameError: if no folder can have that name, or what has it must stay.
            StateNotSavedError: if a state isn't made of tensors and plain values.
            CheckpointWriteError: if the system refuses; nothing of that name is changed.
            PeersLostError: naming who didn't come.
        """
        _, optimizer = ready(self._training, "save_persistables")
        optimizer.check_loaded()
        check_folder_name(str(dirname))
        began = self._clock.monotonic()
        first = self._world.rank == 0

        def choose() -> list[str] | None:
            if not first:
                return None
            final = Path(dirname)
            if keep is not None:
                clear_left(final, alone=True)  # of a save during which a worker was killed
                final = begin_numbered(final, step=optimizer.num_steps)
            final = folder_to_save(final)
            return [str(final), str(temporary_beside(final))]

        chosen = in_all(self._world, "fleet.save_persistables", choose)[0]
        final, temporary = map(Path, chosen)
        try:
            with naming(final):
                parts = self._all("writing a checkpoint", lambda: self._write(temporary))

            def finish() -> None:
                if first:
                    manifest = manifest_of(
                        parts, steps=optimizer.num_steps, made_of=made_of(optimizer)
                    )
                    with naming(final):
                        write_group_manifest(temporary, manifest)
                    give_name(temporary, final)
                    if keep is not None:
                        end_numbered(final, keep=keep)

            self._all("naming a checkpoint", finish)
        finally:
            if first:
                shutil.rmtree(temporary, ignore_errors=True)
        if not first:
            return None
        cut = Cut(consistent=True, paused_s=round(self._clock.monotonic() - began, 3))
        facts = {"folder": str(final), "paused_s": cut.paused_s}
        log.info("worker.checkpoint_written", extra=facts)
        return cut

    def load(self, dirname: str | Path) -> list[str]:
        """Go on from a checkpoint; every worker calls it between the same steps.

        Returns:
            Registered objects that the checkpoint has no state of for this worker, and
            ``random`` where its generators begin anew: warnings say why.

        Raises:
            CallOrderError: before model and optimizer are given, or between merged batches.
            ManifestError: if the folder isn't a checkpoint of a job without servers.
            CheckpointDamagedError: if a file isn't what was saved.
            OtherTrainingError: if it is of another model, optimizer or strategy.
            RegisteredStateError: if a saved state isn't one of the object that is registered by
                its name, in any of the workers.
            PeersLostError: naming who didn't come.
        """
        model, optimizer = ready(self._training, "load_model")
        check_folder_name(str(dirname))

        def find() -> list[str] | None:
            if self._world.rank:
                return None
            folder = folder_to_load(dirname)
            return [str(folder), read_group_manifest(folder).digest]

        found, digest = in_all(self._world, "fleet.load_model", find)[0]
        folder = Path(found)
        read: list[Prepared] = []

        def prepare() -> None:
            manifest = read_group_manifest(folder, digest=digest)
            read.append(prepared(folder, manifest, self._world, model, optimizer))

        self._all("reading a checkpoint", prepare)
        (ours,) = read
        lacking: dict[str, str] = dict(ours.lacking)
        with ExitStack() as stack:

            def take() -> None:
                taking = self._registered.taking(
                    ours.progress, rank=self._world.rank, workers=self._world.size
                )
                lacking.update(stack.enter_context(taking))

            self._all("loading what is registered", take)

            def put() -> None:
                try:
                    ours.state.put(model, optimizer)
                except NOT_FITTING as error:
                    rule = f"has a state that doesn't fit: {error!r}; load another checkpoint"
                    raise ManifestError(path=str(folder / MANIFEST), rule=rule) from error

            with optimizer.loading(str(folder)):
                self._all("loading a checkpoint", put)
            optimizer.end_load()
        if ours.random is not None:
            restore_random(ours.random, self._world.device)
        if lacking:
            facts = {"folder": str(folder), "reasons": lacking}
            log.warning("worker.not_resumed", extra=facts)
        return sorted(lacking)

    def _all(self, name: str, act: Callable[[], Any]) -> list[Any]:
        with self._world.together(name):
            return in_all(self._world, f"fleet.{name}", act)

    def _write(self, folder: Path) -> dict[str, Any]:
        """Write this worker's file; return what the manifest says of it."""
        model, optimizer = ready(self._training, "save_persistables")
        registered, world = self._registered, self._world
        return write_worker(
            folder,
            world.rank,
            taken_state(model, optimizer),
            random_states(world.device),
            registered.progress(steps=optimizer.num_steps, workers=world.size),
        )
