"""Logs and metrics, the same in every process.

A log record is an event name and its fields, one line on standard error::

    12:00:00.250 INFO pserver/1 job.joined incarnation=1 endpoint=10.0.0.4:7000

or, where ``log_format`` is ``json``, one object::

    {
        "time": "2026-05-01T12:00:00.250Z",
        "level": "INFO",
        "role": "pserver",
        "index": 1,
        "event": "job.joined",
        "fields": {"incarnation": 1, "endpoint": "10.0.0.4:7000"},
    }

Libraries take ``logging.getLogger(__name__)`` and write
``log.info("job.joined", extra={"incarnation": 1})``; only ``setup_logging`` sets a handler.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from typing_extensions import override

from paramfleet_shared.values.texts import printable, shortened

__all__ = [
    "JsonFormatter",
    "LogFormat",
    "MetricRegistry",
    "add_pairs",
    "event_formatter",
    "finite",
    "note",
    "setup_logging",
    "show_warnings",
]

LogFormat = Literal["text", "json"]

MAX_VALUE = 4000
"""Characters of a field of a line."""

_PLAIN_ATTRIBUTES = frozenset(
    vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "pairs", "taskName"}
)


def event_formatter(who: str) -> logging.Formatter:
    """Return the formatter of one line: time (UTC), level, who, event and its fields.

    Args:
        who: The process's name in the job, as ``pserver/1``.
    """
    formatter = _LineFormatter(
        f"%(asctime)s.%(msecs)03d %(levelname)s {who} %(message)s%(pairs)s", "%H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter


class _LineFormatter(logging.Formatter):
    """Keeps control characters out of the log: what is logged may come from any peer."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), lines=False)

    @override
    def formatException(self, ei: Any) -> str:
        return printable(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, role, index, event and its fields.

    Args:
        role: As of ``setup_logging``.
        index: The same; None is null.
    """

    def __init__(self, role: str, index: int | None) -> None:
        super().__init__()
        self._who = {"role": role, "index": index}

    @override
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            **self._who,
            "event": record.getMessage(),
            "fields": finite(_extra_of(record)),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


def finite(value: Any) -> Any:
    """Return plain values as JSON may hold them and pages may show them.

    NaN and infinities, which JSON has no word for, become text, and text loses its control
    characters.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _extra_of(record: logging.LogRecord) -> dict[str, Any]:
    # Libraries mark every record of a process with attributes of their own, as Ray does.
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _PLAIN_ATTRIBUTES and not name.startswith("_")
    }


def add_pairs(record: logging.LogRecord) -> bool:
    """Give a record its fields as ``pairs``; a handler's filter that lets all pass."""
    extra = _extra_of(record)
    record.pairs = "".join(f" {name}={_shown(value)}" for name, value in extra.items())
    return True


def setup_logging(
    role: str,
    index: int | None = None,
    level: str = "INFO",
    *,
    log_format: LogFormat = "text",
) -> None:
    """Send the project's log to standard error; may be called again when the index is known.

    Args:
        role: ``coordinator``, ``pserver`` or ``worker``.
        index: The process's index in its role; None before it is known.
        level: A level's name.
        log_format: For people, or for programs.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter(role, index))
    else:
        handler.addFilter(add_pairs)
        handler.setFormatter(event_formatter(role if index is None else f"{role}/{index}"))
    for name in ("paramfleet", "paramfleet_shared", f"paramfleet_{role}"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())


class _WhereNobodyShows(logging.StreamHandler[Any]):
    """Shows events that no other handler shows: a script's own logging replaces it."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_warnings(role: str, index: int | None) -> None:
    """Show warnings with all their facts on standard error, unless the program has a log.

    Python would show the event's name alone.

    Args:
        role: As of ``setup_logging``.
        index: The same.
    """
    handler = _WhereNobodyShows(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.addFilter(add_pairs)
    handler.setFormatter(event_formatter(role if index is None else f"{role}/{index}"))
    for name in ("paramfleet", "paramfleet_shared"):
        logger = logging.getLogger(name)
        others = [h for h in logger.handlers if not isinstance(h, _WhereNobodyShows)]
        logger.handlers[:] = [*others, *([] if others else [handler])]


def note(logger: logging.Logger, event: str, **facts: Any) -> None:
    """Log at INFO, and show it where ``show_warnings`` shows warnings.

    Args:
        logger: Below one that ``show_warnings`` gives a handler.
        event: The record's name.
        facts: Its fields.
    """
    if logger.isEnabledFor(logging.INFO):
        logger.info(event, extra=facts)
        return
    where = logger.name.partition(".")[0]
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, event, (), None, extra=facts)
    for handler in logging.getLogger(where).handlers:
        if isinstance(handler, _WhereNobodyShows):
            handler.handle(record)


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
    if isinstance(value, Mapping):  # as text: quotes inside quotes would be escaped
        value = "{" + ", ".join(f"{key}: {each}" for key, each in value.items()) + "}"
    text = shortened(str(value), MAX_VALUE)
    return repr(text) if any(c.isspace() or c in '"=' for c in text) or not text else text
