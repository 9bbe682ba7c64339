"""Settings of the coordinator."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from paramfleet_shared.files.folders import FolderNameError, check_folder_name
from paramfleet_shared.settings.config import JobSettings, SettingError, check_ranges

__all__ = ["CoordinatorSettings"]

_SCHEMES = ("http", "https")

_RANGES: dict[str, tuple[float, float]] = {
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


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorSettings(JobSettings):
    """What a job is started for, and where its coordinator listens.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    worker_num: int = 1
    """Workers of the job; if it is elastic, as many as must join before it trains. 0 takes
    as many as come until none has come for settle_s."""

    server_num: int = 1
    """Pservers of the job; 0 as for worker_num."""

    server_processes: int = 0
    """Processes that must have come before they get the job's server_num groups, evenly; others
    may come and go later. At most server_num. 0: each pserver is a process of its own."""

    replicas: int = 0
    """Followers of each group: processes that keep a copy of it, and take it over when its own
    dies; 0 or 1. Needs server_processes, of which at least 2."""

    replica_grace_s: float = 10.0
    """Seconds that a group waits for a follower before it goes on as without replicas, and is
    named unprotected."""

    settle_s: float = 5.0
    """Seconds without another newcomer after which those who came are all, if their number
    is 0."""

    num_shards: int = 8
    """Shards of every table; at least server_num."""

    elastic: bool = False
    """Whether workers of an async or GEO job may die, come late and leave while it goes on, and
    the one of a gpubox job may be started again."""

    worker_grace_s: float = 30.0
    """Seconds that a worker may be silent while its launcher sees it alive; if the job is
    elastic, any worker. An elastic job then goes on without it, any other fails."""

    server_grace_s: float = 30.0
    """Seconds that a pserver may be silent while its launcher sees it alive, and a group while
    its process lives."""

    server_return_s: float = 60.0
    """Seconds that a job waits for a process to take the place of a pserver that died or left,
    if its training is on a disk; 0 doesn't wait, and the job fails at once."""

    worker_return_s: float = 0.0
    """Seconds that a job which isn't elastic waits for a process to take the place of a worker
    that died; 0 doesn't wait. Then it fails, or goes on without the worker if the strategy says
    so (``on_worker_loss``)."""

    bind: str = ""
    """Address to listen on; empty listens on host."""

    port: int = 0
    """Port that members call; 0 picks a free one."""

    admin_port: int = 0
    """Port of status and metrics; 0 picks a free one."""

    start_timeout_s: float = 600.0
    """Seconds from the first member's joining to the last's; 0 waits without end."""

    checkpoint_dir: str = "checkpoints"
    """Folder of the checkpoints that an operator asks for; a relative one is below worker 0's
    working folder. All pservers and worker 0 must share it, and it must be below one of the
    pservers' checkpoint_dirs."""

    prometheus_url: str = ""
    """Address of the Prometheus that reads this job's metrics, as http://prometheus:9090: the
    dashboard has a link to it. Empty shows none."""

    finish_grace_s: float = 10.0
    """Seconds a finished job's members get to leave before the coordinator ends."""

    log_level: str = "INFO"
    """ERROR, WARNING, INFO or DEBUG."""

    def __post_init__(self) -> None:
        JobSettings.__post_init__(self)
        check_ranges(self, _RANGES)
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
