"""The keys of ``strategy.eviction_configs``: which rows go, and how many a table may have."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from paramfleet.config.strategy_keys import MAX_STEPS, Configs, Key, StrategyError
from paramfleet_shared.tables.spec import MAX_TABLE_ROWS, Tracks
from paramfleet_shared.values.bounds import MAX_DAY
from paramfleet_shared.values.texts import shown

__all__ = ["EVICTION_KEYS", "NO_EVICTION", "Eviction", "EvictionPlan", "eviction_plan_of"]

NAME = "eviction_configs"

_MOST_HOURS = 24 * MAX_DAY

_OF_TABLE: dict[str, Key] = {
    "max_rows": Key(
        kind=int,
        default=0,
        minimum=0,
        maximum=MAX_TABLE_ROWS,
        meaning="Largest number of rows of a table, on all pservers together; 0 means no "
        "limit. The least valued rows are evicted first. A new id gets no row while the table "
        "is full.",
    ),
    "max_bytes": Key(
        kind=int,
        default=0,
        minimum=0,
        maximum=2**60,
        meaning="Largest size of a table in bytes: values, optimizer states and index.",
    ),
    "min_rows": Key(
        kind=int,
        default=0,
        minimum=0,
        maximum=MAX_TABLE_ROWS,
        meaning="Number of rows that are always kept, the most valued ones.",
    ),
    "unseen_steps": Key(
        kind=int,
        default=0,
        minimum=0,
        maximum=MAX_STEPS,
        meaning="A row is evicted if it was not pushed for more steps of a worker; 0 means "
        "never.",
    ),
    "unseen_hours": Key(
        kind=int,
        default=0,
        minimum=0,
        maximum=_MOST_HOURS,
        meaning="A row is evicted if it was not pushed for more hours; 0 means never.",
    ),
    "value": Key(
        kind=str,
        default=None,
        choices=("recency", "frequency"),
        meaning="For tables without an accessor, which rows are evicted because of `max_rows`: "
        "with `recency` those that were not pushed for the longest time, with "
        "`frequency` those that were pushed least often, where old pushes count less. "
        "By default `recency`, which `unseen_steps` and `unseen_hours` need.",
    ),
    "half_life": Key(
        kind=int,
        default=0,
        minimum=0,
        maximum=MAX_STEPS,
        meaning="For `frequency`: number of steps after which a push counts for half. 0 means "
        "`every_steps / headroom`, the time in which evictions replace all rows.",
    ),
    "headroom": Key(
        kind=float,
        default=0.1,
        minimum=0.001,
        maximum=0.9,
        meaning="Share of `max_rows` that is free after an eviction. Rows are evicted when "
        "less than half of it is free.",
    ),
    "every_steps": Key(
        kind=int,
        default=1000,
        minimum=0,
        maximum=MAX_STEPS,
        meaning="Number of steps between two evictions; with 0 only `fleet.shrink` evicts. Ten "
        "times as often the rows are counted, and rows of a full table are evicted.",
    ),
}

EVICTION_KEYS: dict[str, Key] = {
    **_OF_TABLE,
    "tables": Key(
        kind=dict,
        default=None,
        meaning="Other values of these keys for single tables, by name.",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Eviction:
    """Which rows of one table go."""

    max_rows: int = 0
    max_bytes: int = 0
    min_rows: int = 0
    unseen_steps: int = 0
    unseen_hours: int = 0
    value: str | None = None
    half_life: int = 0
    headroom: float = _OF_TABLE["headroom"].default
    every_steps: int = _OF_TABLE["every_steps"].default

    @property
    def is_on(self) -> bool:
        """Return whether any row may go for it."""
        return bool(self.max_rows or self.max_bytes or self.unseen_steps or self.unseen_hours)

    @property
    def tracks(self) -> Tracks:
        """Return what rows keep of when they were pushed last, if they have no accessor."""
        if not self.is_on:
            return "none"
        return "hour" if self.unseen_hours else "step"

    @property
    def fades_by(self) -> float:
        """Return the half-life of pushes in steps, 0 if the last one alone is kept."""
        if self.value != "frequency":
            return 0.0
        if not (self.max_rows or self.max_bytes):
            return 0.0
        every = self.every_steps or _OF_TABLE["every_steps"].default
        return float(self.half_life or every / self.headroom)

    def capped(self, row_bytes: int) -> int:
        """Return the most rows of a table, 0 for no limit.

        Args:
            row_bytes: What a row takes, with its part of the index.
        """
        of_bytes = max(1, self.max_bytes // row_bytes) if self.max_bytes else 0
        return min(self.max_rows or of_bytes, of_bytes or self.max_rows)

    def is_full(self, num_rows: int, *, max_rows: int) -> bool:
        """Return whether rows are to go because there are so many.

        Args:
            num_rows: How many there are.
            max_rows: The table's most rows; 0 for no limit.
        """
        return bool(max_rows) and num_rows > max_rows * (1 - self.headroom / 2)

    def num_to_evict(self, num_rows: int, num_expired: int, *, max_rows: int) -> int:
        """Return how many rows are to go, in the order of their keys.

        Args:
            num_rows: How many there are.
            num_expired: How many of them have expired.
            max_rows: The table's most rows; 0 for no limit.
        """
        beyond = 0
        if self.is_full(num_rows, max_rows=max_rows):
            beyond = num_rows - int(max_rows * (1 - self.headroom))
        return max(0, min(max(num_expired, beyond), num_rows - self.min_rows))


NO_EVICTION = Eviction()
"""Every row stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionPlan:
    """Which rows of each table go."""

    by_default: Eviction = NO_EVICTION
    tables: Mapping[str, Eviction] = field(default_factory=lambda: MappingProxyType({}))
    """Of those that have their own."""

    def of(self, table: str) -> Eviction:
        """Return which rows of a table go."""
        return self.tables.get(table, self.by_default)


def eviction_plan_of(configs: Mapping[str, Any]) -> EvictionPlan:
    """Return what the keys mean together.

    Raises:
        StrategyError: if a key of a table is unknown or out of range, two contradict each
            other, or a key has no effect without another one.
    """
    common = {key: configs[key] for key in _OF_TABLE}
    tables = {}
    for name, own in (configs["tables"] or {}).items():
        where = f"{NAME}['tables'][{shown(name)}]"
        if not isinstance(own, Mapping) or not isinstance(name, str):
            rule = "must be a dict of a table's keys, by its name"
            raise StrategyError(key=where, value=shown(own), rule=rule)
        mine = Configs(where, _OF_TABLE, prefix=f"{where}.")
        mine.update(own)
        tables[name] = _checked(where, {**common, **mine}, own)
    return EvictionPlan(
        by_default=_checked(NAME, common, dict(configs)), tables=MappingProxyType(tables)
    )


def _checked(where: str, values: Mapping[str, Any], given: Mapping[str, Any]) -> Eviction:
    """Return a table's keys as one.

    Raises:
        StrategyError: if two contradict each other, or one that was given has no effect.
    """
    found = Eviction(**{each.name: values[each.name] for each in fields(Eviction)})

    wrong = _wrong(found, given)
    if wrong is not None:
        key, rule = wrong
        raise StrategyError(key=f"{where}[{key!r}]", value=shown(values[key]), rule=rule)
    return found


def _wrong(found: Eviction, given: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return which key of a table contradicts another one, or has no effect, and why."""
    if found.unseen_steps and found.unseen_hours:
        return "unseen_hours", "doesn't go with unseen_steps: a row keeps one of both"
    kept = int(found.max_rows * (1 - found.headroom))
    if found.max_rows and found.min_rows > kept:
        rule = f"must be at most {kept:,}, what is left of max_rows when rows have gone for it"
        return "min_rows", rule
    for key in ("headroom", "value"):
        has_limit = found.max_rows or found.max_bytes
        if given.get(key) is not None and not has_limit:
            return key, "has no effect without max_rows or max_bytes"
    return _wrong_value(found, given)


def _wrong_value(found: Eviction, given: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return which key of what rows are worth contradicts another one, and why."""
    if found.value == "frequency" and (found.unseen_steps or found.unseen_hours):
        return "value", "doesn't go with unseen_steps or unseen_hours, which need the last push"
    if given.get("half_life") and not found.fades_by:
        return "half_life", "has no effect if only the last push decides"
    return None
