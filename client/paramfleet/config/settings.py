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

__all__ = ["WorkerSettings", "read_settings"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings(JobSettings):
    """What a worker reads beside them.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    bind: str = ""
    """Address to listen on; empty listens on host."""

    admin_port: int = 0
    """Port of the admin address; 0 picks a free one."""

    dense_request_bytes: int = 64 << 20
    """Bytes of dense values that one request to a pserver carries; more go in pieces of a
    fourth of it, which take longer but delay no other request."""

    dense_in_place_bytes: int = 1 << 30
    """Bytes of a model's dense values beyond which a worker of async, GEO or LocalSGD keeps no
    copies of them for what is on its way: it waits while they travel, from and to the model."""

    visual_path: str = ""
    """Folder of TensorBoard files about LocalSGD's exchanges, with one for each worker; empty
    writes none."""

    resume_from: str = ""
    """Checkpoint that the job continues from, whatever folder the script's `init_server`
    names; empty starts as the script says. `paramfleet launch --resume` sets it for all
    pservers and workers."""

    def __post_init__(self) -> None:
        JobSettings.__post_init__(self)
        ranges: dict[str, tuple[float, float]] = {
            "admin_port": (0, 65_535),
            "dense_request_bytes": (1 << 12, 128 << 20),
            "dense_in_place_bytes": (0, 1 << 62),
        }
        check_ranges(self, ranges)

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
