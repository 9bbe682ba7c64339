"""Settings of the server of a change stream."""

from dataclasses import dataclass, field
from typing import Literal

from paramfleet_shared.settings.config import JobSettings, SettingError, check_ranges

__all__ = ["ServingSettings"]

_JOB = "job:"

_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65_535),
    "memory": (1 << 16, 1 << 50),
    "poll_s": (0.001, 1e6),
    "every_s": (0.001, 1e6),
    "dense_s": (0.001, 1e6),
    "base_changes": (1, 1 << 40),
    "retry_s": (0.001, 1e6),
    "max_ids": (1, 1 << 30),
    "max_body_bytes": (1 << 10, 1 << 32),
    "max_answer_bytes": (1 << 10, 1 << 34),
    "max_requests": (1, 1 << 20),
    "max_connections": (1, 1_000_000),
    "body_timeout_s": (0.001, 1e6),
    "rollback_timeout_s": (0.001, 1e6),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingSettings(JobSettings):
    """How one server of a change stream runs.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    source: str = field(default="", metadata={"flag": "from"})
    """Folder of the stream, or an address such as s3://bucket/stream; or job:NAME, a running
    job, whose changes are asked of its pservers. On the command line `--from`, too."""

    bind: str = ""
    """Address to listen on; empty listens on host."""

    port: int = 0
    """Port of lookups, health, status and metrics; 0 picks a free one."""

    memory: int = 1 << 30
    """Bytes of memory for rows that differ from the base. When they are taken, a newer base of
    the stream is opened, or one is merged in cache_dir. One change may go beyond."""

    cache_dir: str = ""
    """Folder for a base that is merged here, with room for all rows; its files have no names,
    and go with the process. The stream of a job is in a folder of it; who follows a job removes
    the folders of processes that were killed. Empty is the system's temporary folder."""

    poll_s: float = 0.1
    """Seconds between two looks at the folder."""

    every_s: float = 0.2
    """Of a job: seconds between two questions for what has changed."""

    dense_s: float = 1.0
    """Of a job: seconds between two questions for dense parameters."""

    base_changes: int = 2000
    """Of a job: changes after which a base is made of them."""

    retry_s: float = 1.0
    """Seconds until the stream is tried again after an error; up to 32 times as long if that
    doesn't help."""

    accept_other_tables: bool = False
    """Take a base in which a served table is missing or has another width; else it is refused,
    and what is served stays."""

    max_ids: int = 1 << 17
    """Most ids of one lookup, of all its tables together."""

    max_body_bytes: int = 2 << 20
    """Longest body of a request."""

    max_answer_bytes: int = 16 << 20
    """Most bytes of rows in one answer. In JSON a number counts as 28, in bytes as 4."""

    max_requests: int = 64
    """Most requests that are in work at a time; further ones are answered 503, to be sent
    again."""

    max_connections: int = 1024
    """Most connections; one address gets at most half of them."""

    body_timeout_s: float = 5.0
    """Seconds in which a request's body must come."""

    rollback_timeout_s: float = 300.0
    """Seconds that loading a former version may take."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level of what is logged."""

    def __post_init__(self) -> None:
        super(ServingSettings, self).__post_init__()
        check_ranges(self, _RANGES)
        if not self.source:
            rule = "given: the folder of a stream (--from DIR), or a job (--from job:NAME)"
            raise SettingError(name="source", value=self.source, rule=rule)
        if self.source == _JOB:
            rule = "the name of a job behind job:"
            raise SettingError(name="source", value=self.source, rule=rule)

    @property
    def followed_job(self) -> str:
        """Return the name of the job that is followed; empty for a folder."""
        return self.source.removeprefix(_JOB) if self.source.startswith(_JOB) else ""
