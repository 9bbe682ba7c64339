"""Settings of the coordinator."""

from dataclasses import dataclass

from paramfleet_shared.config import JobSettings, SettingError

__all__ = ["CoordinatorSettings"]


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

    settle_s: float = 5.0
    """Seconds without another newcomer after which those who came are all, if their number
    is 0."""

    num_shards: int = 8
    """Shards of every table; at least server_num."""

    elastic: bool = False
    """Whether workers of an async or GEO job may die, come late and leave while it goes on."""

    worker_grace_s: float = 30.0
    """Seconds that a worker may be silent while its launcher sees it alive; if the job is
    elastic, any worker. An elastic job then goes on without it, any other fails."""

    server_grace_s: float = 30.0
    """Seconds that a pserver may be silent while its launcher sees it alive."""

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
    working folder. All pservers and worker 0 must share it."""

    finish_grace_s: float = 10.0
    """Seconds a finished job's members get to leave before the coordinator ends."""

    log_level: str = "INFO"
    """ERROR, WARNING, INFO or DEBUG."""

    def __post_init__(self) -> None:
        JobSettings.__post_init__(self)
        for name in ("worker_num", "server_num", "settle_s"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(self.num_shards >= 1, "num_shards", self.num_shards, "1 or more")
        rule = f"at least server_num ({self.server_num})"
        _require(self.num_shards >= self.server_num, "num_shards", self.num_shards, rule)
        for name in ("port", "admin_port"):
            port = getattr(self, name)
            _require(0 <= port < 1 << 16, name, port, "0 to 65535")
        rule = f"at least lease_ttl_s ({self.lease_ttl_s})"
        _require(self.worker_grace_s >= 0, "worker_grace_s", self.worker_grace_s, ">= 0")
        _require(self.server_grace_s >= 0, "server_grace_s", self.server_grace_s, ">= 0")
        patient = not self.elastic or self.worker_grace_s >= self.lease_ttl_s
        _require(patient, "worker_grace_s", self.worker_grace_s, rule)
        _require(self.start_timeout_s >= 0, "start_timeout_s", self.start_timeout_s, ">= 0")
        _require(self.finish_grace_s >= 0, "finish_grace_s", self.finish_grace_s, ">= 0")
        levels = ("ERROR", "WARNING", "INFO", "DEBUG")
        rule = f"one of {', '.join(levels)}"
        _require(self.log_level.upper() in levels, "log_level", self.log_level, rule)


def _require(holds: bool, name: str, value: object, rule: str) -> None:  # noqa: FBT001 (a test)
    if not holds:
        raise SettingError(name=name, value=value, rule=rule)
