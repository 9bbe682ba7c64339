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
        """Say which day it is, for tables with an accessor, from the next step on.

        Counts of a row fade by ``show_click_decay_rate`` for each day since it was seen last;
        the row itself keeps them as they were until it is seen again. Every worker calls it.

        Args:
            date: A date, or a text like ``"20261126"``.

        Raises:
            AccessorOptionError: if it is no date from 1970 on.
            CallOrderError: before ``distributed_optimizer``.
        """
        day = _day_of(date)
        for table in self._counting("set_date"):
            table.day = day

    def shrink(self, table: str | None = None, *, dry_run: bool = False) -> dict[str, int]:
        """Remove the rows of tables with an accessor that have expired.

        Those are rows whose score, faded up to the day of ``fleet.set_date``, is less than
        ``delete_threshold``, and rows that were not seen for more than
        ``delete_after_unseen_days``. A row that comes again begins anew. The pservers look at
        some rows at a time, and serve others between.

        In sync every worker calls it between the same two steps. In async one worker calls it,
        at any time: what others push meanwhile for a row that goes begins it anew.

        Args:
            table: The name of one; all that have an accessor if it isn't given.
            dry_run: Only count what would go.

        Returns:
            How many rows of each table are gone, or would be; in sync the same in every worker.

        Raises:
            AccessorOptionError: if the table has no accessor.
            CallOrderError: before ``distributed_optimizer``, or if gradients wait for their
                step.
            FleetError: as ``fleet.remove_rows``.
        """
        tables = self._counting("shrink")
        if table is not None:
            known = {each.name: each for each in tables}
            if table not in known:
                names = ", ".join(sorted(known)) or "none"
                rule = f"has no accessor; these tables have one: {names}"
                raise AccessorOptionError(option="table", value=shown(table), rule=rule)
            tables = [known[table]]
        optimizer = self._trained("shrink")
        return {
            each.name: optimizer.shrink(each, dry_run=dry_run)
            for each in sorted(tables, key=lambda each: each.name)
        }

    def _counting(self, function: str) -> list[SparseTable]:
        tables = [each for each, _ in self._trained(function).tables.sparse]
        return [each for each in tables if each.accessor is not None]

    def _trained(self, function: str) -> DistributedOptimizer:
        optimizer = self._session.optimizer
        if optimizer is None:
            remedy = "call fleet.distributed_optimizer() first"
            raise CallOrderError(function=function, remedy=remedy)
        return optimizer


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
