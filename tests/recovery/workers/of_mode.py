"""The worker of each mode."""

from tests.recovery.protocol import STEPS, Mode
from tests.recovery.workers.geo import GeoRowsWorker, GeoWorker
from tests.recovery.workers.localsgd import LocalSgdWorker
from tests.recovery.workers.sync import SyncWorker
from tests.recovery.workers.tables import AsyncWorker
from tests.recovery.workers.worker import Worker
from tests.recovery.world import World

OF_MODE: dict[Mode, type[Worker]] = {
    Mode.ASYNC: AsyncWorker,
    Mode.SYNC: SyncWorker,
    Mode.SHRINK: SyncWorker,
    Mode.GEO: GeoWorker,
    Mode.GEO_ROWS: GeoRowsWorker,
    Mode.LOCALSGD: LocalSgdWorker,
}


def new_worker(world: World, rank: int, incarnation: int, steps: int = STEPS) -> Worker:
    """Return a worker that hasn't joined yet."""
    return OF_MODE[world.mode](world, rank, incarnation, steps)
