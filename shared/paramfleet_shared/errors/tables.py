"""Errors about tables that a pserver has no room for, and about what it lacks of them."""

from paramfleet_shared.errors import ContractError, UnavailableError
from paramfleet_shared.values.amounts import gigabytes

__all__ = ["StagedGoneError", "TableLimitError", "TableMemoryError"]


class TableLimitError(ContractError):
    """A table, or the number of tables, is over a limit of the pserver; nothing was made."""

    code = "contract.table_limit"

    def __init__(self, *, table: str, what: str, value: int, setting: str, limit: int) -> None:
        super().__init__(
            f"table {table!r}: {what} = {value:,} is over the pserver's limit of {limit:,}: "
            f"make it smaller, or raise PARAMFLEET_PSERVER__{setting.upper()}",
            table=table,
            what=what,
            value=value,
            setting=setting,
            limit=limit,
        )
        self.table = table
        self.value = value
        self.limit = limit


class TableMemoryError(ContractError):
    """A pserver hasn't the memory for a table, its new rows or a request; nothing was made."""

    code = "contract.table_memory"

    def __init__(
        self, *, table: str, arithmetic: str, num_bytes: int, free: int, total: int, kept: int
    ) -> None:
        """Build the sentence.

        Args:
            table: The table's name.
            arithmetic: What it needs, as an expression.
            num_bytes: What that comes to.
            free: Bytes free on the pserver.
            total: Bytes there are in all, a container's limit included.
            kept: Bytes of them that stay free, by ``memory_share``.
        """
        super().__init__(
            f"table {table!r}: {arithmetic} = {gigabytes(num_bytes)} on this server; it has "
            f"{gigabytes(free)} free of {gigabytes(total)}, and {gigabytes(kept)} of them stay "
            "free: use more pservers or machines with more memory, make the table smaller, or "
            "raise PARAMFLEET_PSERVER__MEMORY_SHARE",
            table=table,
            arithmetic=arithmetic,
            num_bytes=num_bytes,
            free=free,
            total=total,
            kept=kept,
        )
        self.table = table
        self.num_bytes = num_bytes
        self.free = free
        self.total = total


class StagedGoneError(UnavailableError):
    """A request names numbers sent before it that aren't all here; nothing was changed."""

    code = "unavailable.staged_gone"

    def __init__(self, *, table: str, rank: int, number: int) -> None:
        super().__init__(
            f"table {table!r}: the pieces that worker {rank} sent ahead as number {number} "
            "aren't all here: send them again",
            table=table,
            rank=rank,
            number=number,
        )
