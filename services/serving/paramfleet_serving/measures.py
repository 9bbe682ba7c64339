"""What the server counts, for ``/metrics``."""

from typing import final

from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry

__all__ = ["Measures"]

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@final
class Measures:
    """The metrics of one server.

    Args:
        registry: Where they are rendered from.
    """

    def __init__(self, registry: MetricRegistry) -> None:
        self.lookups = registry.counter(
            "serving_lookups", "Lookups that were answered, by form of the request.", ["form"]
        )
        self.rows = registry.counter(
            "serving_rows", "Rows in the answers to lookups.", ["table"]
        )
        self.seconds = registry.histogram(
            "serving_lookup_seconds",
            "Seconds from the complete request of a lookup to its answer, without the "
            "sending of the answer.",
            buckets=_BUCKETS,
        )
        self.refused = registry.counter(
            "serving_refused", "Requests that got no rows, by code of the error.", ["code"]
        )
        self.errors = registry.counter(
            "serving_follow_errors",
            "Errors while following the stream, by code.",
            ["code"],
        )
        self.changes = registry.counter(
            "serving_changes", "Changes of the stream that were applied."
        )
        self.apply_seconds = registry.counter(
            "serving_apply_seconds",
            "Seconds from receiving a change until it is served, summed. Divide by "
            "paramfleet_serving_changes_total to get the mean.",
        )
        self.swaps = registry.counter(
            "serving_swaps",
            "Times that the whole served state was replaced: by a base, another stream, a "
            "rollback, or a base that the server merged itself.",
        )
        self.age = registry.gauge("serving_age_seconds", "Age of the served version.")
        self.skew = registry.gauge(
            "serving_clock_skew_seconds",
            "How far the moment of the served version is in the future, by this machine's "
            "clock. While it is above 0, the age is not valid.",
        )
        self.number = registry.gauge("serving_number", "Number of the served change.")
        self.overlay_rows = registry.gauge(
            "serving_overlay_rows", "Rows in memory that differ from the base."
        )
        self.overlay_bytes = registry.gauge(
            "serving_overlay_bytes", "Memory of the rows that differ from the base."
        )
        self.pinned = registry.gauge(
            "serving_pinned", "1 while a rollback keeps the server at its number; else 0."
        )
        self.in_work = registry.gauge("serving_in_work", "Requests that are being answered.")
