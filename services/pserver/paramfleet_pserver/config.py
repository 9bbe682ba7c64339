"""Settings of the pserver."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paramfleet_pserver.core.limits import TableLimits
from paramfleet_shared.net.rpc.endpoint import MalformedEndpointError, split_endpoint
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.settings.config import JobSettings, SettingError, check_ranges

__all__ = ["RANGES", "PServerSettings", "table_budgets_of"]

MAX_OWNERS = 8
"""More threads than this share the memory's bandwidth and no longer gain by it."""
WAITING_OWNERS = 4
"""Where rows may be on disk: so many at least, if there are as many cores."""


_MOST_BUDGET = 1 << 50
RANGES: dict[str, tuple[float, float]] = {
    "index": (0, 65_535),
    "port": (0, 65_535),
    "admin_port": (0, 65_535),
    "max_connections": (0, 1_000_000),
    "body_budget_bytes": (0, 1 << 50),
    "owner_threads": (0, 1024),
    "max_tables": (1, 1 << 20),
    "max_dim": (1, 1 << 31),
    "memory_share": (0.01, 1.0),
    "memory_budget_bytes": (0, _MOST_BUDGET),
    "log_segment_bytes": (1 << 12, 1 << 30),
    "drain_timeout_s": (0.0, 1e6),
    "handover_timeout_s": (0.0, 1e6),
}
"""The least and the most of each number, alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PServerSettings(JobSettings):
    """How one pserver runs.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    index: int | None = None
    """Index of this pserver in the job; by default the lowest free one."""

    hosting: Literal["fixed", "planned"] = "fixed"
    """``fixed``: this process is the pserver with its index. ``planned``: this process hosts
    the groups of shards that the coordinator assigns to it, several or none, and index counts
    processes. ``paramfleet launch`` sets it; it must match the coordinator's
    server_processes."""

    bind: str = ""
    """Address to listen on; by default host."""

    port: int = 0
    """Port for workers; 0 chooses a free one. A process that hosts several groups uses it for
    one of them, and free ports for the others."""

    advertise: str = ""
    """host:port under which workers reach this pserver, if a NAT, a container or a proxy
    changes the address; by default host and port."""

    nearby: bool = True
    """Let workers of the same machine and user connect by a Unix socket, which is faster than
    TCP on loopback. Not used with TLS, or if the pserver listens on all addresses. Linux
    only."""

    admin_port: int = 0
    """Port of the admin address; 0 chooses a free one."""

    max_connections: int = 0
    """Largest number of connections from workers; further ones are closed immediately, and one
    machine can have at most half of them. 0 means 10,000, or what the limit of open files
    allows."""

    body_budget_bytes: int = 0
    """Memory for requests and answers in transfer, of all connections together. A request that
    exceeds it is refused, and the worker sends it again. 0 means an eighth of the memory of the
    machine or container."""

    owner_threads: int = 0
    """Threads that work on the tables. 0 means half of the machine's cores, at most 8; where
    rows may be on disk, which threads wait for, all of up to 4 cores. A training that began
    elsewhere keeps the number of blocks that it began with, one for each thread there; no more
    threads than blocks work on it."""

    max_tables: int = 1024
    """Largest number of tables that a job may declare."""

    max_dim: int = 65_536
    """Largest number of values in a row."""

    memory_share: float = 0.9
    """Share of the memory of the machine or container that may be in use when a table is
    created or grows. What would exceed it is refused, with an error that names the table."""

    memory_budget_bytes: int = 0
    """Memory in bytes for the rows of all sparse tables of this process; further rows, those
    that are used least, are in cold_dir. With 0 all rows are in memory."""

    table_memory_budgets: str = ""
    """Own budgets for single tables: ``users=2000000000,items=500000000``."""

    cold_dir: str = ""
    """Folder on a fast disk for rows that exceed a budget; its files are removed when the
    process ends. By default ``cold`` in data_dir."""

    load: str = ""
    """Folder of a checkpoint to start from."""

    durability: Literal["none", "async", "sync"] = "none"
    """Whether changes are written to disk, so that this pserver continues after a restart.
    ``async``: workers don't wait for the disk, and send again what was not on it. ``sync``: a
    change is acknowledged when it is on the disk. ``none``: nothing is written, and the job
    ends with the process."""

    data_dir: str = ""
    """Folder for the data of durability; needed unless that is ``none``. After a restart the
    process needs the same folder."""

    log_segment_bytes: int = 64 << 20
    """With data_dir: bytes of each file of the log. A snapshot is taken when the log since the
    last snapshot is longer than four files, and longer than twice that snapshot."""

    arguments_file: str = ""
    """File to which `fleet.run_server()` writes its arguments, so that the pserver can be
    restarted without the script; `paramfleet launch` sets it."""

    drain_timeout_s: float = 5.0
    """Seconds at the end in which requests in progress can finish."""

    handover_timeout_s: float = 60.0
    """With hosting=planned: seconds in which a process that must end can hand over its groups.
    Whatever stops the process must wait longer."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level that is logged."""

    def __post_init__(self) -> None:
        super(PServerSettings, self).__post_init__()
        check_ranges(self, RANGES)
        if self.durability != "none" and not self.data_dir:
            rule = "given, as durability says that the training is kept on a disk"
            raise SettingError(name="data_dir", value=self.data_dir, rule=rule)
        if self.data_dir and self.durability == "none":
            rule = "async or sync where data_dir is given; or leave data_dir empty"
            raise SettingError(name="durability", value=self.durability, rule=rule)
        if (self.memory_budget_bytes or self.table_budgets) and not self.cold_folder:
            rule = "given, as rows beyond the memory budget go there"
            raise SettingError(name="cold_dir", value=self.cold_dir, rule=rule)
        if self.advertise and self.hosting == "planned":
            rule = "left out with hosting=planned, where each group has a port of its own"
            raise SettingError(name="advertise", value=self.advertise, rule=rule)
        if self.advertise:
            try:
                split_endpoint(self.advertise)
            except MalformedEndpointError as error:
                rule = "host:port, or [address]:port for IPv6"
                raise SettingError(name="advertise", value=self.advertise, rule=rule) from error

    @property
    def cold_folder(self) -> str:
        """Return where rows beyond a budget go; empty for nowhere."""
        if self.cold_dir or not self.data_dir:
            return self.cold_dir
        return str(Path(self.data_dir) / "cold")

    @property
    def table_budgets(self) -> dict[str, int]:
        """Return the memory for rows of tables that have a budget of their own, by name.

        Raises:
            SettingError: if they can't be read.
        """
        return table_budgets_of("table_memory_budgets", self.table_memory_budgets)

    @property
    def limits(self) -> Limits:
        """Return what clients of the data plane may not pass."""
        return Limits(
            max_connections=self.max_connections, server_budget_bytes=self.body_budget_bytes
        )

    @property
    def table_limits(self) -> TableLimits:
        """Return what tables are taken."""
        return TableLimits(
            max_tables=self.max_tables, max_dim=self.max_dim, memory_share=self.memory_share
        )

    @property
    def num_owners(self) -> int:
        """Return how many owner threads to start."""
        cores = os.cpu_count() or 1
        has_budget = bool(self.memory_budget_bytes or self.table_budgets)
        least = min(cores, WAITING_OWNERS) if has_budget else 1
        return self.owner_threads or max(least, min(MAX_OWNERS, cores // 2))


def table_budgets_of(name: str, text: str) -> dict[str, int]:
    """Return budgets of single tables in bytes, by the table's name.

    Args:
        name: Of the setting, for the error.
        text: As ``users=2000000000,items=500000000``.

    Raises:
        SettingError: if they can't be read.
    """
    budgets: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        table, number = (each.strip() for each in part.rpartition("=")[::2])
        is_number = number.isdecimal() and len(number) <= len(str(_MOST_BUDGET))
        if not table or not is_number or not 0 < int(number) <= _MOST_BUDGET:
            rule = "tables with their bytes, as in users=2000000000,items=500000000"
        elif table in budgets:
            rule = f"one budget for each table, and not two for {table}"
        else:
            budgets[table] = int(number)
            continue
        raise SettingError(name=name, value=text, rule=rule)
    return budgets
