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
    """What to serve: the folder of a stream, an address such as s3://bucket/stream, or
    job:NAME, a running job, whose changes come from its pservers. On the command line also
    `--from`."""

    bind: str = ""
    """Address to listen on; by default host."""

    port: int = 0
    """Port for lookups, health, status and metrics; 0 chooses a free one."""

    memory: int = 1 << 30
    """Bytes of memory for rows that differ from the base. When the memory is full, a newer base
    of the stream is opened, or a new base is merged in cache_dir. One change may exceed it."""

    cache_dir: str = ""
    """Folder for bases that are merged here; it needs space for all rows. Their files have no
    names and are removed with the process. The stream of a job is also in this folder; a server
    that follows a job removes folders of killed processes. By default the system's temporary
    folder."""

    poll_s: float = 0.1
    """Seconds between two checks of the folder for changes."""

    every_s: float = 0.2
    """For a job: seconds between two requests for changed rows."""

    dense_s: float = 1.0
    """For a job: seconds between two requests for dense parameters."""

    base_changes: int = 2000
    """For a job: number of changes after which a new base is made."""

    retry_s: float = 1.0
    """Seconds until the stream is read again after an error; after repeated errors up to 32
    times as long."""

    accept_other_tables: bool = False
    """Accept a base in which a served table is missing or has another width. By default it is
    refused, and the current version is still served."""

    max_ids: int = 1 << 17
    """Largest number of ids in one lookup, of all tables together."""

    max_body_bytes: int = 2 << 20
    """Largest number of bytes in a request."""

    max_answer_bytes: int = 16 << 20
    """Largest number of bytes of rows in one answer. A number counts as 28 bytes in JSON, and
    as 4 bytes in safetensors."""

    max_requests: int = 64
    """Largest number of requests at the same time; further ones get the status 503 and can be
    sent again."""

    max_connections: int = 1024
    """Largest number of connections; one address can have at most half of them."""

    body_timeout_s: float = 5.0
    """Seconds in which the body of a request must arrive."""

    rollback_timeout_s: float = 300.0
    """Seconds that loading an earlier version may take."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level that is logged."""

    def __post_init__(self) -> None:
        super(ServingSettings, self).__post_init__()
        check_ranges(self, _RANGES)
        if not self.source:
            rule = "given: the folder of a stream (--from DIR), or a job (--from job:NAME)"
            raise SettingError(name="source", value=self.source, rule=rule)
        if self.source == _JOB:
            rule = "the name of a job after job:"
            raise SettingError(name="source", value=self.source, rule=rule)

    @property
    def followed_job(self) -> str:
        """Return the name of the job that is followed; empty for a folder."""
        return self.source.removeprefix(_JOB) if self.source.startswith(_JOB) else ""
