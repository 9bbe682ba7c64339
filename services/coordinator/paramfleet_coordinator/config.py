"""Settings of the coordinator."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from paramfleet_shared.files.folders import FolderNameError, check_folder_name
from paramfleet_shared.settings.config import JobSettings, SettingError, check_ranges

__all__ = ["RANGES", "CoordinatorSettings"]

_SCHEMES = ("http", "https")

RANGES: dict[str, tuple[float, float]] = {
    "worker_num": (0, 65_536),
    "server_num": (0, 65_536),
    "server_processes": (0, 65_536),
    "replicas": (0, 1),
    "replica_grace_s": (0.0, 1e7),
    "settle_s": (0.0, 1e6),
    "num_shards": (1, 65_536),
    "worker_grace_s": (0.0, 1e7),
    "server_grace_s": (0.0, 1e7),
    "server_return_s": (0.0, 1e7),
    "worker_return_s": (0.0, 1e7),
    "port": (0, 65_535),
    "admin_port": (0, 65_535),
    "start_timeout_s": (0.0, 1e7),
    "finish_grace_s": (0.0, 1e7),
}
"""The least and the most of each number, alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorSettings(JobSettings):
    """What a job is started for, and where its coordinator listens.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    worker_num: int = 1
    """Number of workers; in an elastic job, the number that must join before the training
    starts. 0 means: as many as join until none has joined for settle_s."""

    server_num: int = 1
    """Number of pservers; 0 as for worker_num."""

    server_processes: int = 0
    """Number of processes that must join before the job's server_num groups of shards are
    divided evenly between them; more may join and leave later. At most server_num. With 0 each
    pserver is one process."""

    replicas: int = 0
    """Copies of each group on other processes, 0 or 1. With 1, another process takes over a
    group when its process dies. Needs server_processes of at least 2."""

    replica_grace_s: float = 10.0
    """Seconds that a group waits for a process with its copy. After that it continues without
    one and is reported as unprotected."""

    settle_s: float = 5.0
    """If worker_num or server_num is 0: seconds without a new process after which the job
    starts with those that have joined."""

    num_shards: int = 8
    """Number of shards of every table; at least server_num."""

    elastic: bool = False
    """Let workers of an async or GEO job die, join later and leave while the job continues, and
    let the only worker of a gpubox job be restarted."""

    worker_grace_s: float = 30.0
    """Seconds that a worker may be silent while its launcher sees that it is alive; in an
    elastic job, any worker. After that an elastic job continues without the worker, and any
    other job fails."""

    server_grace_s: float = 30.0
    """Seconds that a pserver may be silent while its launcher sees that it is alive, and a
    group while its process is alive."""

    server_return_s: float = 60.0
    """Seconds that a job waits for a replacement of a pserver that died or left, if the
    pserver's data is on a disk. With 0 the job fails immediately."""

    worker_return_s: float = 0.0
    """Seconds that a job which isn't elastic waits for a replacement of a worker that died; 0
    doesn't wait. After that the job fails, or continues without the worker if the strategy
    allows it (``on_worker_loss``)."""

    bind: str = ""
    """Address to listen on; by default host."""

    port: int = 0
    """Port for the other processes of the job; 0 chooses a free one."""

    admin_port: int = 0
    """Port for status and metrics; 0 chooses a free one."""

    start_timeout_s: float = 600.0
    """Seconds in which all processes must join after the first one; 0 waits forever."""

    checkpoint_dir: str = "checkpoints"
    """Folder for checkpoints that an operator requests; a relative path is in worker 0's
    working folder. All pservers and worker 0 must share this folder, and it must be in one of
    the pservers' checkpoint_dirs."""

    prometheus_url: str = ""
    """Address of the Prometheus that reads this job's metrics, as http://prometheus:9090. The
    job's page then has a link to it."""

    finish_grace_s: float = 10.0
    """Seconds that the processes of a finished job have to leave before the coordinator
    ends."""

    log_level: str = "INFO"
    """Lowest level that is logged: ERROR, WARNING, INFO or DEBUG."""

    def __post_init__(self) -> None:
        JobSettings.__post_init__(self)
        check_ranges(self, RANGES)
        rule = f"at least server_num ({self.server_num})"
        _require(self.num_shards >= self.server_num, "num_shards", self.num_shards, rule)
        rule = f"at most server_num ({self.server_num}), which must be given"
        fits = self.server_processes <= self.server_num
        _require(fits, "server_processes", self.server_processes, rule)
        rule = "0, or with server_processes of at least 2: a copy is in another process"
        fits = not self.replicas or self.server_processes > 1
        _require(fits, "replicas", self.replicas, rule)
        rule = f"at least lease_ttl_s ({self.lease_ttl_s})"
        patient = not self.elastic or self.worker_grace_s >= self.lease_ttl_s
        _require(patient, "worker_grace_s", self.worker_grace_s, rule)
        try:
            check_folder_name(self.checkpoint_dir)
        except FolderNameError as error:
            raise SettingError(
                name="checkpoint_dir", value=self.checkpoint_dir, rule=f"a folder: {error.rule}"
            ) from error
        url = urlsplit(self.prometheus_url)
        is_page = not self.prometheus_url or (url.scheme in _SCHEMES and bool(url.hostname))
        rule = "an address that begins with http:// or https://, or empty"
        _require(is_page, "prometheus_url", self.prometheus_url, rule)
        levels = ("ERROR", "WARNING", "INFO", "DEBUG")
        rule = f"one of {', '.join(levels)}"
        _require(self.log_level.upper() in levels, "log_level", self.log_level, rule)


def _require(holds: bool, name: str, value: object, rule: str) -> None:  # noqa: FBT001 (a test)
    if not holds:
        raise SettingError(name=name, value=value, rule=rule)
