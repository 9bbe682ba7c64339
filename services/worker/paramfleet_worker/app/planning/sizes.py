"""What rows take, as the tables and the tier on disk are built."""

from typing import Any

from paramfleet_shared.tables.disk.log.logged import KEY_BYTES
from paramfleet_shared.tables.disk.log.writeahead import keys_at_once, most_logged
from paramfleet_shared.tables.disk.pages.files import PAGES_OFFSET
from paramfleet_shared.tables.disk.pages.geometry import (
    Geometry,
    fullest_for,
    page_bytes_for,
    rows_in,
)
from paramfleet_shared.tables.disk.shards.moving import (
    BESIDE_BYTES,
    LOG_SHARE,
    MOST_LOG_BYTES,
)
from paramfleet_shared.tables.kernels.index import PAGE_LINES, pages_for
from paramfleet_shared.tables.memory.slot_index import LINE_BYTES
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.ctr.accessor import NUM_COUNTS, PARTS
from paramfleet_shared.tables.spec import OptimizerSpec, Storage, TableSpec
from paramfleet_worker.core.planning.plan import RowSizes, TierSizes

__all__ = ["row_sizes", "spec_for", "tier_sizes"]

_FLOAT_BYTES = 4
_WORD_BYTES = 8
_MANY_ROWS = 1 << 30


def spec_for(*, dim: int, optimizer: str, accessor: str | None, storage: Storage) -> TableSpec:
    """Return a table as pservers know it.

    Args:
        dim: Weights of a row, as ``Embedding`` has them.
        optimizer: A rule; without effect on a table with an accessor.
        accessor: The rule of both parts of a row of ``CtrAccessor``; None for a table without.
        storage: Of the values.

    Raises:
        TableSpecError: if there can't be such a table.
    """
    if accessor is None:
        rule = OptimizerSpec(rule=optimizer)
    else:
        parts: dict[str, Any] = {f"{part}_rule": accessor for part in PARTS}
        rule = OptimizerSpec(rule="ctr", **parts)
        dim += NUM_COUNTS
    return TableSpec(name="table", kind="sparse", dim=dim, optimizer=rule, storage=storage)


def row_sizes(spec: TableSpec) -> RowSizes:
    """Return what a row takes; of the index its id, and its part where that is emptiest."""
    lines = pages_for(_MANY_ROWS) * PAGE_LINES * LINE_BYTES
    return RowSizes(
        row=RowLayout.of(spec).row_bytes,
        index=_WORD_BYTES + -(-lines // _MANY_ROWS),
        value=_FLOAT_BYTES * spec.dim,
    )


def tier_sizes(spec: TableSpec, *, rows: int, owners: int, budget_bytes: int) -> TierSizes:
    """Return what tiers on disk take that have all rows of a pserver.

    Args:
        spec: The table.
        rows: Of the pserver.
        owners: Threads that own a part of them each, with files of its own.
        budget_bytes: Memory for rows.
    """
    row_bytes = RowLayout.of(spec).row_bytes
    page_bytes = page_bytes_for(row_bytes)
    holds = rows_in(page_bytes, row_bytes)
    pages = owners * Geometry.of(rows / owners, holds, fullest_for(holds)).pages
    memory = min(owners * MOST_LOG_BYTES, budget_bytes // LOG_SHARE)
    keys = memory // KEY_BYTES
    return TierSizes(
        pages=owners * PAGES_OFFSET + pages * page_bytes,
        num_pages=pages,
        log=owners * most_logged(keys // owners) * (_WORD_BYTES + row_bytes),
        merged_keys=owners * keys_at_once(keys // owners),
        log_memory=memory,
        policy=BESIDE_BYTES,
    )
