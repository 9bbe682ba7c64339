"""PaddleRec's section ``table_parameters``: tables that have an accessor, by their names.

Its keys are those of Fleet's ``sparse_table_configs``, read by the same rules: what is wrong
with one is told with the line that it stands in.
"""

from collections.abc import Mapping
from typing import Any

from paramfleet.config.fleet_tables import accessors_of
from paramfleet.config.strategy_keys import StrategyError
from paramfleet.runner.config.entries import Entry, free_value
from paramfleet.runner.config.errors import ConfigError
from paramfleet_shared.values.texts import shown

__all__ = ["SECTION", "table_parameters_of"]

SECTION = "table_parameters"


def table_parameters_of(entries: Mapping[str, Entry]) -> dict[str, dict[str, Any]]:
    """Return the keys of each table, as ``strategy.sparse_table_configs`` takes them.

    Args:
        entries: Below the section, by dotted key.

    Raises:
        ConfigError: if a key is unknown, with the nearest known one, or a value can't be.
    """
    tables: dict[str, dict[str, Any]] = {}
    for key, entry in entries.items():
        table, dot, rest = key.partition(".")
        own = tables.setdefault(table, {})
        value = free_value(entry, f"{SECTION}.{key}")
        if dot:
            own[rest] = value
            _check(table, {rest: value}, entry, key)
        elif value is not None:
            rule = "must be a mapping of a table's keys"
            raise ConfigError(
                where=entry.where, key=f"{SECTION}.{key}", value=shown(value), rule=rule
            )
    for table, own in tables.items():  # what two keys together can't be
        first = next(key for key in entries if key.partition(".")[0] == table)
        _check(table, own, entries[first], table)
    return tables


def _check(table: str, keys: Mapping[str, Any], entry: Entry, key: str) -> None:
    """Pass if keys of a table can be.

    Raises:
        ConfigError: if not, naming the line of the entry.
    """
    try:
        accessors_of({}, {table: keys})
    except StrategyError as error:
        raise ConfigError(
            where=entry.where, key=f"{SECTION}.{key}", value=error.value, rule=error.rule
        ) from error
