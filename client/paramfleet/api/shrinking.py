"""``fleet.set_date`` and ``fleet.shrink``: rows that were seen too seldom or too long ago."""

import datetime as dt
from typing import Any

from paramfleet.config.accessor import AccessorOptionError
from paramfleet.config.errors import CallOrderError
from paramfleet.session.session import Session
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.values.bounds import MAX_DAY
from paramfleet_shared.values.texts import shown

__all__ = ["Shrinking"]

_FIRST = dt.date(1970, 1, 1)


class Shrinking:
    """Ages the rows of one session's tables.

    Args:
        session: Whose tables they are.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def set_date(self, date: dt.date | str) -> None:
        """Say which day it is, from the next step on.

        Counts of a row with an accessor fade by ``show_click_decay_rate`` for each day since it
        was seen last; the row itself keeps them as they were until it is seen again. Rows
        of tables with ``unseen_hours`` keep the hour: that of ``date``, if it is a datetime,
        else the day's first one. Tables whose accessor counts days by saves are left out. Every
        worker calls it. In GEO it exchanges what was counted on the day before. A day before
        that of the last call is taken, too: a row that was seen on a later day keeps that day,
        and doesn't fade.

        Args:
            date: A date, a datetime, or a text like ``"20261126"``.

        Raises:
            AccessorOptionError: if it is no date from 1970 on.
            CallOrderError: before ``distributed_optimizer``.
            FleetError: in GEO, if the exchange that ends the day failed.
        """
        day = _day_of(date)
        hour = date.hour if isinstance(date, dt.datetime) else 0
        optimizer = self._trained("set_date")
        by_date = [
            table
            for table, _ in optimizer.tables.sparse
            if table.accessor is not None and not table.counts_days
        ]
        is_training = optimizer.started and not optimizer.is_finished
        if {table.day for table in by_date} - {day} and is_training:
            optimizer.running.end_day()
        for table, _ in optimizer.tables.sparse:
            if table.accessor is not None and not table.counts_days:
                table.day = day
            elif table.kept_as.tracks == "hour":
                table.hour = 24 * day + hour

    def shrink(self, table: str | None = None, *, dry_run: bool = False) -> dict[str, int]:
        """Remove the rows that have expired, and the least valued ones of a table that is full.

        A row of a table with an accessor has expired if its score, decayed up to the day of
        ``fleet.set_date``, is less than ``delete_threshold``, or if it was not seen for more
        than ``delete_after_unseen_days``. A row of another table has expired if it was not
        pushed for more than ``unseen_steps`` or ``unseen_hours`` of
        ``strategy.eviction_configs``. With ``max_rows``, if less than half of ``headroom`` is
        free, rows are removed until ``headroom`` is free: first those that have expired, then
        those with the lowest score, or without an accessor those that were not pushed for the
        longest time. ``min_rows`` are kept. A removed id that is used again gets a new row. The
        pservers check some rows at a time, and serve other requests in between.

        In sync every worker calls it between the same two steps. In async and GEO one worker
        calls it, at any time: a push of another worker may create a removed row again.

        Args:
            table: The name of a table; by default all that have an accessor or evict rows.
            dry_run: Only count the rows that would be removed.

        Returns:
            The number of removed rows of each table; in sync the same in every worker.

        Raises:
            AccessorOptionError: if the table has neither.
            CallOrderError: before ``distributed_optimizer``, or if gradients wait for their
                step.
            FleetError: as ``fleet.remove_rows``.
        """
        optimizer = self._trained("shrink")
        tables = [each for each, _ in optimizer.tables.sparse if _has_value(each)]
        if table is not None:
            known = {each.name: each for each in tables}
            if table not in known:
                names = ", ".join(sorted(known)) or "none"
                rule = f"has no accessor and no eviction_configs; these tables have: {names}"
                raise AccessorOptionError(option="table", value=shown(table), rule=rule)
            tables = [known[table]]
        return {
            each.name: optimizer.shrink(each, dry_run=dry_run)
            for each in sorted(tables, key=lambda each: each.name)
        }

    def _trained(self, function: str) -> DistributedOptimizer:
        optimizer = self._session.optimizer
        if optimizer is None:
            remedy = "call fleet.distributed_optimizer() first"
            raise CallOrderError(function=function, remedy=remedy)
        return optimizer


def _has_value(table: SparseTable) -> bool:
    """Return whether rows of a table can be told apart by what they are worth."""
    return table.accessor is not None or table.kept_as.tracks != "none"


def _day_of(date: Any) -> int:
    """Return a date as days from 1970.

    Raises:
        AccessorOptionError: if it is no date.
    """
    found = date
    if isinstance(date, str):
        try:
            found = dt.datetime.strptime(date, "%Y%m%d").date()  # noqa: DTZ007 - a day has no zone
        except ValueError:
            found = None
    if isinstance(found, dt.datetime):
        found = found.date()
    day = (found - _FIRST).days if isinstance(found, dt.date) else 0
    if not 0 < day <= MAX_DAY:
        rule = 'must be a date from 1970 on, or a text like "20261126"'
        raise AccessorOptionError(option="date", value=shown(date), rule=rule)
    return day
