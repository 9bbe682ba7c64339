"""Settings of the launcher."""

from dataclasses import dataclass
from pathlib import Path

from paramfleet_shared.config import SettingError

__all__ = ["LaunchSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSettings:
    """What ``paramfleet launch`` starts, and where.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    server_num: int | None = None
    """Pservers to start; empty is 1, or as many as --servers names."""

    worker_num: int | None = None
    """Workers to start; empty is 1, or as many as --workers names."""

    elastic: bool = False
    """Async and GEO: go on without workers that die; others may come and leave."""

    log_dir: Path = Path("log")
    """Folder that gets serverlog.N, workerlog.N, coordinatorlog.0 and redislog.0."""

    servers: str = ""
    """Several machines: ip:port of every pserver of the job, with commas between."""

    workers: str = ""
    """Several machines: ip or ip:port of every worker of the job, with commas between."""

    coordinator: str = ""
    """Several machines: ip:port of the coordinator."""

    redis: str = ""
    """Address of the registry; empty starts one on this machine for this job alone."""

    job: str = "default"
    """Name of the job; jobs that share a Redis need different names."""

    host_ip: str = ""
    """Several machines: the one address of the lists that is this machine; empty takes
    POD_IP, else whatever addresses this machine's interfaces have."""

    def __post_init__(self) -> None:
        for name in ("server_num", "worker_num"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise SettingError(name=name, value=number, rule="1 or more")
        given = {n: getattr(self, n) for n in ("servers", "workers", "coordinator", "redis")}
        several = any(given[name] for name in ("servers", "workers", "coordinator"))
        for name, value in given.items():
            if several and not value:
                rule = "given, as --servers, --workers, --coordinator and --redis go together"
                raise SettingError(name=name, value=value, rule=rule)

    @property
    def several_machines(self) -> bool:
        """Tell whether the options name the machines of the job."""
        return bool(self.servers)
