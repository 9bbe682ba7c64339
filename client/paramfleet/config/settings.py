"""Settings of a worker."""

import logging
from dataclasses import dataclass

from paramfleet.config.dense_limits import DenseLimits
from paramfleet_shared.net.secret import open_warnings
from paramfleet_shared.settings.config import (
    JobSettings,
    check_ranges,
    read_environment,
    resolve,
)

__all__ = ["RANGES", "WorkerSettings", "read_settings"]

RANGES: dict[str, tuple[float, float]] = {
    "admin_port": (0, 65_535),
    "dense_request_bytes": (1 << 12, 128 << 20),
    "dense_in_place_bytes": (0, 1 << 62),
}
"""The least and the most of each number, alone."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings(JobSettings):
    """What a worker reads beside them.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    bind: str = ""
    """Address to listen on; by default host."""

    admin_port: int = 0
    """Port of the admin address; 0 chooses a free one."""

    dense_request_bytes: int = 64 << 20
    """Largest number of bytes of dense values in one request to a pserver. More bytes are sent
    in pieces of a quarter of this, which takes longer but doesn't delay other requests."""

    dense_in_place_bytes: int = 1 << 30
    """Bytes of a model's dense values above which a worker of async, GEO or LocalSGD makes no
    copies of them for transfers; instead it waits during each transfer."""

    visual_path: str = ""
    """Folder for TensorBoard files about LocalSGD's exchanges, with a folder for each worker;
    by default none are written."""

    resume_from: str = ""
    """Checkpoint from which the job continues, instead of the folder in the script's
    `init_server`. `paramfleet launch --resume` sets it for all pservers and workers."""

    def __post_init__(self) -> None:
        JobSettings.__post_init__(self)
        check_ranges(self, RANGES)

    @property
    def dense_limits(self) -> DenseLimits:
        """Return how dense tables travel."""
        return DenseLimits(
            request_bytes=self.dense_request_bytes, in_place_bytes=self.dense_in_place_bytes
        )


def read_settings(*, host: str | None, warn: bool = True) -> WorkerSettings:
    """Return this process's settings, of its environment.

    Args:
        host: Goes before the environment's; None for the environment's.
        warn: Whether the log names what the job leaves open.

    Raises:
        SettingError: if a value is wrong.
        UnknownSettingError: if nothing reads one.
    """
    environment = read_environment()
    resolved = resolve(
        WorkerSettings,
        section="worker",
        arguments={"host": host},
        environment=environment,
    )
    if warn:
        for warning in open_warnings(resolved.origins, resolved.value, environment):
            log.warning(warning)
    return resolved.value
