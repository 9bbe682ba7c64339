"""Logs and metrics, the same in every process.

A log record is an event name and its fields, one line on standard error::

    12:00:00.250 INFO pserver/1 job.joined incarnation=1 endpoint=10.0.0.4:7000

Libraries take ``logging.getLogger(__name__)`` and write
``log.info("job.joined", extra={"incarnation": 1})``; only ``setup_logging`` sets a handler.
"""

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["MetricRegistry", "add_pairs", "event_formatter", "setup_logging"]

_PLAIN_ATTRIBUTES = frozenset(
    vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "pairs", "taskName"}
)


def event_formatter(who: str) -> logging.Formatter:
    """Return the formatter of one line: time (UTC), level, who, event and its fields.

    Args:
        who: The process's name in the job, as ``pserver/1``.
    """
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03d %(levelname)s {who} %(message)s%(pairs)s", "%H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter


def add_pairs(record: logging.LogRecord) -> bool:
    """Give a record its fields as ``pairs``; a handler's filter that lets all pass."""
    extra = {k: v for k, v in vars(record).items() if k not in _PLAIN_ATTRIBUTES}
    record.pairs = "".join(f" {name}={_shown(value)}" for name, value in extra.items())
    return True


def setup_logging(role: str, index: int | None = None, level: str = "INFO") -> None:
    """Send the project's log to standard error; may be called again when the index is known.

    Args:
        role: ``coordinator``, ``pserver`` or ``worker``.
        index: The process's index in its role; None before it is known.
        level: A level's name.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(add_pairs)
    handler.setFormatter(event_formatter(role if index is None else f"{role}/{index}"))
    for name in ("paramfleet", "paramfleet_shared", f"paramfleet_{role}"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())


class MetricRegistry:
    """The metrics of one process, under names that start with ``paramfleet_``.

    It has its own collector registry, so that two servers in one process don't mix.
    """

    def __init__(self) -> None:
        self._collectors = CollectorRegistry(auto_describe=True)

    def counter(self, name: str, sentence: str, labels: Sequence[str] = ()) -> Counter:
        """Return a new counter ``paramfleet_<name>_total``."""
        return Counter(f"paramfleet_{name}", sentence, labels, registry=self._collectors)

    def gauge(self, name: str, sentence: str, labels: Sequence[str] = ()) -> Gauge:
        """Return a new gauge ``paramfleet_<name>``."""
        return Gauge(f"paramfleet_{name}", sentence, labels, registry=self._collectors)

    def histogram(
        self,
        name: str,
        sentence: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS,
    ) -> Histogram:
        """Return a new histogram ``paramfleet_<name>``."""
        return Histogram(
            f"paramfleet_{name}", sentence, labels, buckets=buckets, registry=self._collectors
        )

    def render(self) -> bytes:
        """Return every metric in the Prometheus text format."""
        return generate_latest(self._collectors)


def _shown(value: Any) -> str:
    """Return a value on one line, quoted when it holds blanks."""
    text = str(value)
    return repr(text) if any(c.isspace() or c in '"=' for c in text) or not text else text
