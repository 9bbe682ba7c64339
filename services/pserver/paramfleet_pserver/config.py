"""Settings of the pserver."""

import os
from dataclasses import dataclass
from typing import Literal

from paramfleet_pserver.core.limits import TableLimits
from paramfleet_shared.config import JobSettings, SettingError
from paramfleet_shared.rpc.endpoint import MalformedEndpointError, split_endpoint

__all__ = ["PServerSettings"]

MAX_OWNERS = 8
"""More threads than this share the memory's bandwidth and no longer gain by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PServerSettings(JobSettings):
    """How one pserver runs.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    index: int | None = None
    """Index among the job's pservers; none takes the lowest that is free."""

    bind: str = ""
    """Address to listen on; empty listens on host."""

    port: int = 0
    """Port of the data plane; 0 picks a free one."""

    advertise: str = ""
    """host:port under which workers reach the data plane, where a NAT, a container or a
    proxy changes it; empty is host and the port listened on."""

    nearby: bool = True
    """Whether workers of this machine and user may come by a Unix socket, which is faster than
    loopback TCP; they do unless there is TLS, or it listens on all addresses. Linux only."""

    admin_port: int = 0
    """Port of the admin address; 0 picks a free one."""

    owner_threads: int = 0
    """Threads that work on the tables; 0 takes half of the machine's cores, at most 8."""

    max_tables: int = 1024
    """Tables that are taken of a job."""

    max_dim: int = 65_536
    """Values in a row of a table that is taken."""

    memory_share: float = 0.9
    """Share of the machine's memory, or of the container's limit, that may be in use when a
    table is made or grows; what would go beyond is refused by name."""

    load: str = ""
    """Folder of a checkpoint to start from; empty starts afresh."""

    drain_timeout_s: float = 5.0
    """Seconds that requests in progress get at the end."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level of what is logged."""

    def __post_init__(self) -> None:
        super(PServerSettings, self).__post_init__()
        if self.index is not None and self.index < 0:
            raise SettingError(name="index", value=self.index, rule=">= 0, or none")
        for name in ("port", "admin_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise SettingError(name=name, value=getattr(self, name), rule="in 0..65535")
        if self.advertise:
            try:
                split_endpoint(self.advertise)
            except MalformedEndpointError as error:
                rule = "host:port, or [address]:port for IPv6"
                raise SettingError(name="advertise", value=self.advertise, rule=rule) from error
        self._check_limits()
        if self.owner_threads < 0:
            raise SettingError(name="owner_threads", value=self.owner_threads, rule=">= 0")
        if self.drain_timeout_s < 0:
            raise SettingError(name="drain_timeout_s", value=self.drain_timeout_s, rule=">= 0")

    def _check_limits(self) -> None:
        for name, value in (("max_tables", self.max_tables), ("max_dim", self.max_dim)):
            if value < 1:
                raise SettingError(name=name, value=value, rule=">= 1")
        if not 0.0 < self.memory_share <= 1.0:
            rule = "more than 0, at most 1"
            raise SettingError(name="memory_share", value=self.memory_share, rule=rule)

    @property
    def table_limits(self) -> TableLimits:
        """Return what tables are taken."""
        return TableLimits(
            max_tables=self.max_tables, max_dim=self.max_dim, memory_share=self.memory_share
        )

    @property
    def num_owners(self) -> int:
        """Return how many owner threads to start."""
        return self.owner_threads or max(1, min(MAX_OWNERS, (os.cpu_count() or 1) // 2))
