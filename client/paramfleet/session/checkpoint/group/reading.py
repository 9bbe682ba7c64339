"""What one worker needs of a checkpoint: read and compared, before anything is changed."""

from pathlib import Path
from typing import Any, NamedTuple

from paramfleet.model_state.random_states import check_random
from paramfleet.session.all_or_none import NOT_FITTING
from paramfleet.session.checkpoint.group.files import WorkerFiles
from paramfleet.session.checkpoint.group.manifest import GroupManifest
from paramfleet.session.checkpoint.group.part import progress_of
from paramfleet.session.checkpoint.group.putting import StateToPut, state_to_put
from paramfleet.session.registered import SavedProgress
from paramfleet.training.collective.model import CollectiveModel
from paramfleet.training.collective.optimizer import CollectiveOptimizer
from paramfleet.training.collective.world import World
from paramfleet_shared.checkpoint.manifest import MANIFEST, ManifestError

__all__ = ["Prepared", "prepared"]


class Prepared(NamedTuple):
    """What a worker takes."""

    state: StateToPut
    progress: SavedProgress
    random: Any
    """The states of its generators; None if they begin anew."""

    lacking: dict[str, str]
    """What begins anew, and why."""


def prepared(
    folder: Path,
    manifest: GroupManifest,
    world: World,
    model: CollectiveModel,
    optimizer: CollectiveOptimizer,
) -> Prepared:
    """Read what this worker takes, and compare it with what it has.

    Raises:
        ManifestError: if the checkpoint contradicts itself.
        CheckpointDamagedError: if a file isn't what was saved.
        OtherTrainingError: if it is of another training.
    """
    files = WorkerFiles(folder, manifest)
    saved = len(manifest.workers)
    try:
        state = state_to_put(
            str(folder), manifest, files, model, optimizer, place=(world.rank, world.size)
        )
        values = [
            {
                name: files.value(rank, document)
                for name, document in worker.extra.items()
                if name not in {"own", "random"}
            }
            for rank, worker in enumerate(manifest.workers)
        ]
        progress = progress_of(manifest, values)
        random = None
        if saved == world.size:
            random = files.value(world.rank, manifest.workers[world.rank].extra["random"])
            check_random(random, world.device)
    except NOT_FITTING as error:
        rule = f"is malformed: {error}; load another checkpoint"
        raise ManifestError(path=str(folder / MANIFEST), rule=rule) from error
    lacking = {}
    if random is None:
        was = f"it was saved by {saved} workers, and there are {world.size} now"
        lacking["random"] = was
        if state.anew:
            lacking[str(optimizer.plan.apart)] = f"{was}: it begins at the last synchronization"
    return Prepared(state, progress, random, lacking)
