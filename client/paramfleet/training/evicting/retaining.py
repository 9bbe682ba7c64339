"""What the strategy says of tables: accessors, which rows go, and what rows keep for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from paramfleet.config.eviction import EvictionPlan
from paramfleet.config.fleet_tables import TableAccessor
from paramfleet.config.strategy_keys import StrategyError
from paramfleet.tables.row_store import spec_of
from paramfleet.tables.rules import OptimizerNotServedError, rule_of_rows
from paramfleet.tables.sparse import SparseTable
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.ctr.accessor import NUM_SHORT
from paramfleet_shared.tables.sparse import INDEX_BYTES
from paramfleet_shared.values.texts import nearest

__all__ = ["give_accessors", "retain"]


def give_accessors(
    tables: Sequence[tuple[SparseTable, dict[str, Any]]],
    accessors: Mapping[str, TableAccessor],
) -> None:
    """Give tables the accessors that Fleet's keys ask for.

    Args:
        tables: Each with its parameter group.
        accessors: By the tables' names.

    Raises:
        StrategyError: if there is no such table, or it can't have it.
    """
    named = {table.name: table for table, _ in tables}
    for name, (accessor, embedx_dim, where) in accessors.items():
        _check_name(where, name, list(named))
        table = named[name]
        if table.accessor == accessor:  # by another optimizer before
            continue
        rule = ""
        if table.accessor is not None:
            rule = "its embedding has an accessor of its own: say it once"
        elif table.in_use:
            rule = "its rows were looked up before fleet.distributed_optimizer()"
        elif table.kept_as.storage != "float32":
            rule = "storage must be float32 where rows have an accessor: 16 bits count to 256"
        elif table.dim + accessor.num_hidden <= accessor.num_counts:
            rule = f"embedding_dim must be more than {accessor.num_counts}"
        elif embedx_dim not in {None, table.dim + accessor.num_hidden - NUM_SHORT}:
            had = table.dim + accessor.num_hidden - NUM_SHORT
            rule = f"its rows have {had} weights after the first one, not {embedx_dim}"
        if rule:
            raise StrategyError(key=where, value="", rule=rule)
        table.take_accessor(accessor)


def retain(
    optimizer: torch.optim.Optimizer,
    tables: Sequence[tuple[SparseTable, dict[str, Any]]],
    plan: EvictionPlan,
) -> None:
    """Have tables keep what a plan needs to know of their rows.

    Args:
        optimizer: The user's, which says how large a row is.
        tables: Each with its parameter group.
        plan: Which rows go.

    Raises:
        StrategyError: if it names a table that there isn't, or asks one for what its rows
            can't tell.
    """
    for name in plan.tables:
        where = f"eviction_configs['tables'][{name!r}]"
        _check_name(where, name, [table.name for table, _ in tables])
    for table, group in tables:
        own = plan.of(table.name)
        table.eviction = own
        tracks = own.tracks if table.accessor is None else "none"
        if table.accessor is not None and (own.unseen_steps or own.unseen_hours):
            raise StrategyError(
                key="eviction_configs",
                value="",
                rule=f"table {table.name!r} has an accessor, whose rows keep days: set its "
                "delete_after_unseen_days in the place of unseen_steps and unseen_hours",
            )
        half_life = own.fades_by if tracks == "step" else 0.0
        table.kept_as = table.kept_as._replace(tracks=tracks, half_life=half_life)
        most = own.max_rows
        if own.max_bytes:
            most = own.capped(_row_bytes(optimizer, group, table))
        entry = replace(table.kept_as.entry, max_rows=most)
        table.kept_as = table.kept_as._replace(entry=entry)


def _check_name(where: str, name: str, known: list[str]) -> None:
    """Pass if there is a table of a name.

    Raises:
        StrategyError: if not.
    """
    if name not in known:
        near = nearest(name, known)
        all_known = ", ".join(map(repr, sorted(known))) or "none"
        hint = f"did you mean {near!r}?" if near else f"it trains {all_known}"
        rule = f"the optimizer trains no such table of rows; {hint}"
        raise StrategyError(key=where, value="", rule=rule)


def _row_bytes(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], table: SparseTable
) -> int:
    """Return what a row of a table takes on a pserver, with its part of the index.

    Raises:
        StrategyError: if that isn't known.
    """
    try:
        rule = rule_of_rows(optimizer, group, table)
    except OptimizerNotServedError as error:
        raise StrategyError(
            key="eviction_configs['max_bytes']",
            value="",
            rule=f"how large a row is isn't known, as {error}; set max_rows",
        ) from error
    return RowLayout.of(spec_of(table, rule=rule)).row_bytes + INDEX_BYTES
