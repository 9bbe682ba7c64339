"""Settings of the pserver."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paramfleet_pserver.core.limits import TableLimits
from paramfleet_shared.net.rpc.endpoint import MalformedEndpointError, split_endpoint
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.settings.config import JobSettings, SettingError, check_ranges

__all__ = ["PServerSettings"]

MAX_OWNERS = 8
"""More threads than this share the memory's bandwidth and no longer gain by it."""


_MOST_BUDGET = 1 << 50
_RANGES: dict[str, tuple[float, float]] = {
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PServerSettings(JobSettings):
    """How one pserver runs.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    index: int | None = None
    """Index among the job's pservers; none takes the lowest that is free."""

    hosting: Literal["fixed", "planned"] = "fixed"
    """``fixed``: this process is the pserver of its index. ``planned``: it hosts the groups
    that the coordinator plans for it, several or none; index counts processes then. As the
    coordinator's server_processes says; ``paramfleet launch`` sets it."""

    bind: str = ""
    """Address to listen on; empty listens on host."""

    port: int = 0
    """Port of the data plane; 0 picks a free one. A process that hosts several groups has it
    for one of them, and free ones for the others."""

    advertise: str = ""
    """host:port under which workers reach the data plane, where a NAT, a container or a
    proxy changes it; empty is host and the port listened on."""

    nearby: bool = True
    """Whether workers of this machine and user may come by a Unix socket, which is faster than
    loopback TCP; they do unless there is TLS, or it listens on all addresses. Linux only."""

    admin_port: int = 0
    """Port of the admin address; 0 picks a free one."""

    max_connections: int = 0
    """Most connections of the data plane; a further one is closed at once, and one machine
    gets at most half of them. 0 takes 10,000, or what the limit of open files leaves."""

    body_budget_bytes: int = 0
    """Memory of requests and answers under way, of all connections together; a request over it
    is refused, and sent again. 0 takes an eighth of the memory of the machine or container."""

    owner_threads: int = 0
    """Threads that work on the tables; 0 takes half of the machine's cores, at most 8."""

    max_tables: int = 1024
    """Tables that are taken of a job."""

    max_dim: int = 65_536
    """Values in a row of a table that is taken."""

    memory_share: float = 0.9
    """Share of the machine's memory, or of the container's limit, that may be in use when a
    table is made or grows; what would go beyond is refused by name."""

    memory_budget_bytes: int = 0
    """Memory for the rows of all sparse tables of this process; the least used ones beyond it
    are on the disk of cold_dir. 0 keeps all rows in memory."""

    table_memory_budgets: str = ""
    """The same for single tables, which have a budget of their own then: ``users=2000000000,
    items=500000000``."""

    cold_dir: str = ""
    """Folder for the rows that are beyond a budget, on a fast disk; what is there lasts as long
    as the process. Empty takes ``cold`` in data_dir."""

    load: str = ""
    """Folder of a checkpoint to start from; empty starts afresh."""

    durability: Literal["none", "async", "sync"] = "none"
    """How the training is kept on this pserver's disk, so that a process that is started again
    goes on with it. ``async``: workers don't wait for the disk, and send again what wasn't on
    it. ``sync``: a change is answered when it is on the disk. ``none``: the job ends with the
    process."""

    data_dir: str = ""
    """Folder for the training; needed unless durability is ``none``. A process that is started
    again needs the same one."""

    log_segment_bytes: int = 64 << 20
    """With a data folder: bytes of each file of the log. A snapshot is taken when the log
    behind the last one is longer than four of them, and longer than twice that snapshot."""

    arguments_file: str = ""
    """File into which `fleet.run_server()` writes the arguments of the script, so that the next
    process is started without the script; `paramfleet launch` sets it. Empty writes none."""

    drain_timeout_s: float = 5.0
    """Seconds that requests in progress get at the end."""

    handover_timeout_s: float = 60.0
    """Seconds that a process of planned groups has to hand these over when it is asked to end.
    Whoever stops it must wait for longer."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level of what is logged."""

    def __post_init__(self) -> None:
        super(PServerSettings, self).__post_init__()
        check_ranges(self, _RANGES)
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
        budgets: dict[str, int] = {}
        for part in filter(None, map(str.strip, self.table_memory_budgets.split(","))):
            table, number = (each.strip() for each in part.rpartition("=")[::2])
            is_number = number.isdecimal() and len(number) <= len(str(_MOST_BUDGET))
            if not table or not is_number or not 0 < int(number) <= _MOST_BUDGET:
                rule = "tables with their bytes, as in users=2000000000,items=500000000"
            elif table in budgets:
                rule = f"one budget for each table, and not two for {table}"
            else:
                budgets[table] = int(number)
                continue
            name, value = "table_memory_budgets", self.table_memory_budgets
            raise SettingError(name=name, value=value, rule=rule)
        return budgets

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
        return self.owner_threads or max(1, min(MAX_OWNERS, (os.cpu_count() or 1) // 2))
