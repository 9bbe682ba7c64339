"""Errors about tables that a pserver has no room for, and about what it lacks of them."""

from typing_extensions import override

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError
from paramfleet_shared.values.amounts import gigabytes

__all__ = [
    "ColdDiskError",
    "ColdRowsLostError",
    "StagedGoneError",
    "TableLimitError",
    "TableMemoryError",
]


class TierModeError(ContractError):
    """A pserver keeps cold rows on disk, and the mode needs all of them in memory."""

    code = "contract.tier_mode"
    mode: str
    sentence = (
        "mode {mode} needs all rows in the memory of the pservers: leave memory_budget_bytes"
        " and table_memory_budgets of the pservers out, or train in sync, async or gpubox"
    )


class TierRowError(ContractError):
    """Rows of a table may have to go to a disk, and are too wide for it; nothing was made."""

    code = "contract.tier_row"
    table: str
    row_bytes: int
    limit: int
    sentence = (
        "table {table!r}: a row has {row_bytes:,} bytes, and the maximum on disk is {limit:,}: "
        "make it narrower, or leave memory_budget_bytes of the pservers out, and name other "
        "tables in table_memory_budgets"
    )


class TableLimitError(ContractError):
    """A table, or the number of tables, is over a limit of the pserver; nothing was made."""

    code = "contract.table_limit"
    table: str
    what: str
    value: int
    setting: str
    limit: int

    @override
    def describe(self) -> str:
        return (
            f"table {self.table!r}: {self.what} = {self.value:,} is over the pserver's limit "
            f"of {self.limit:,}: "
            f"make it smaller, or raise PARAMFLEET_PSERVER__{self.setting.upper()}"
        )


class TableMemoryError(ContractError):
    """A pserver hasn't the memory for a table, its new rows or a request; nothing was made."""

    code = "contract.table_memory"
    table: str
    """The table's name."""
    arithmetic: str
    """What it needs, as an expression."""
    num_bytes: int
    """What that comes to."""
    free: int
    """Bytes free on the pserver."""
    total: int
    """Bytes there are in all, a container's limit included."""
    kept: int
    """Bytes of them that stay free, by ``memory_share``."""

    @override
    def describe(self) -> str:
        return (
            f"table {self.table!r}: {self.arithmetic} = {gigabytes(self.num_bytes)} on this "
            "server; it has "
            f"{gigabytes(self.free)} free of {gigabytes(self.total)}, and "
            f"{gigabytes(self.kept)} of them stay "
            "free: use more pservers or machines with more memory, make the table smaller, or "
            "raise PARAMFLEET_PSERVER__MEMORY_SHARE"
        )


class ColdDiskError(UnavailableError):
    """A pserver ends, as its disk has failed; the next process has its rows from a copy."""

    code = "unavailable.cold_disk"
    server: int
    reason: str
    sentence = (
        "pserver {server} ends, because its rows on disk can't be used: {reason}; another "
        "process continues from its log or a replica: send the request to that process"
    )


class ColdRowsLostError(IntegrityError):
    """A pserver's disk has failed, and this process can't go on."""

    code = "integrity.cold_rows_lost"
    server: int
    reason: str
    sentence = (
        "pserver {server} can't use its rows on disk: {reason}; check the disk of its "
        "cold_dir. If it has no log and no replica, resume the job from a checkpoint"
    )


class StagedGoneError(UnavailableError):
    """A request names numbers sent before it that aren't all here; nothing was changed."""

    code = "unavailable.staged_gone"
    table: str
    rank: int
    number: int
    sentence = (
        "table {table!r}: the pieces that worker {rank} sent ahead as number {number} "
        "aren't all here: send them again"
    )
