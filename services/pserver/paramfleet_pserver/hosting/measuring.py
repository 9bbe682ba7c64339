"""Gauges of a process, over all groups that it hosts."""

from collections.abc import Callable, Sequence
from functools import partial

from paramfleet_pserver.api.routes import OPERATIONS
from paramfleet_pserver.core.service import ServiceTimes
from paramfleet_pserver.hosting.gauges import (
    BODY_GAUGES,
    HELD,
    LOG_GAUGES,
    ROW_GAUGES,
    SERVICE_GAUGES,
    TABLE_GAUGES,
)
from paramfleet_pserver.hosting.group import HostedGroup
from paramfleet_pserver.tables.table import QUANTILES
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry

__all__ = ["Measures"]


class Measures:
    """What a process measures.

    Args:
        metrics: Where the gauges are.
        service: How long requests took.
        groups: Returns the groups that are hosted now.
    """

    def __init__(
        self,
        metrics: MetricRegistry,
        service: ServiceTimes,
        groups: Callable[[], Sequence[HostedGroup]],
    ) -> None:
        self._groups = groups
        self._tables = {
            fact: metrics.gauge(f"table_{fact}", sentence, ["table"])
            for fact, sentence in TABLE_GAUGES.items()
        }
        self._rows = {
            fact: metrics.gauge(f"table_row_{fact}", sentence, ["table", "quantile"])
            for fact, sentence in ROW_GAUGES.items()
        }
        for which, sentence in SERVICE_GAUGES.items():
            gauge = metrics.gauge(f"pserver_{which}", sentence, ["operation"])
            for operation in OPERATIONS:
                gauge.labels(operation).set_function(partial(service.measure, operation, which))
        held = metrics.gauge("pserver_pushes_held_seconds", HELD)
        held.set_function(self._held_s)
        for name, sentence in LOG_GAUGES.items():
            gauge = metrics.gauge(f"pserver_log_{name}", sentence)
            gauge.set_function(partial(self._log, name))
        for name, sentence in BODY_GAUGES.items():
            gauge = metrics.gauge(f"pserver_{name}_bytes", sentence)
            gauge.set_function(partial(self._bodies, name))

    def note_tables(self) -> None:
        """Measure the tables; numbers are sums over the groups, others the largest.

        Quantiles are those of one group: ids are spread over all alike.
        """
        totals: dict[tuple[str, str], float] = {}
        for group in self._groups():
            for table in group.facts()["tables"]:
                for fact in table.keys() & ROW_GAUGES.keys():
                    for quantile, value in zip(QUANTILES, table[fact], strict=True):
                        self._rows[fact].labels(table["name"], quantile).set(value)
                for fact in TABLE_GAUGES:
                    key, value = (table["name"], fact), float(table.get(fact, 0))
                    before = totals.get(key, 0.0)
                    largest = fact in {"version", "rate_power"}
                    totals[key] = max(before, value) if largest else before + value
        for (name, fact), value in totals.items():
            self._tables[fact].labels(name).set(value)

    def sample_rows(self) -> None:
        """Have some rows of each table looked at, for quantiles to come."""
        for group in self._groups():
            if group.routes is not None:
                group.routes.sample_rows()

    def _held_s(self) -> float:
        routes = [group.routes for group in self._groups()]
        return sum(each.held_s for each in routes if each is not None)

    def _log(self, name: str) -> float:
        facts = [group.log_facts() for group in self._groups()]
        values = [float(each[name]) for each in facts if each is not None]
        return max(values, default=0.0) if name == "refusing" else sum(values)

    def _bodies(self, name: str) -> float:
        return float(sum(getattr(group.server.num_held, name) for group in self._groups()))
