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
            "serving_lookups", "Lookups answered, by form of the request.", ["form"]
        )
        self.rows = registry.counter("serving_rows", "Rows in their answers.", ["table"])
        self.seconds = registry.histogram(
            "serving_lookup_seconds",
            "Seconds from a lookup's whole request to its answer, before that is sent.",
            buckets=_BUCKETS,
        )
        self.refused = registry.counter(
            "serving_refused", "Requests that got no rows, by the error's code.", ["code"]
        )
        self.errors = registry.counter(
            "serving_follow_errors",
            "What was wrong with what comes from the stream, by the error's code.",
            ["code"],
        )
        self.changes = registry.counter("serving_changes", "Changes of the stream applied.")
        self.apply_seconds = registry.counter(
            "serving_apply_seconds",
            "Seconds from taking a change to its effect; over changes the mean.",
        )
        self.swaps = registry.counter(
            "serving_swaps",
            "States that replaced what was served as a whole: of bases, other streams, "
            "rollbacks and own merges.",
        )
        self.age = registry.gauge(
            "serving_age_seconds", "How old what is served is: its moment, until now."
        )
        self.skew = registry.gauge(
            "serving_clock_skew_seconds",
            "How far the moment of what is served is in the future by this machine's clock: "
            "while it is above 0, the age says nothing.",
        )
        self.number = registry.gauge("serving_number", "Number of the change that is served.")
        self.overlay_rows = registry.gauge(
            "serving_overlay_rows", "Rows that differ from the base, in memory."
        )
        self.overlay_bytes = registry.gauge("serving_overlay_bytes", "Memory of these.")
        self.pinned = registry.gauge(
            "serving_pinned", "1 while a rollback keeps the server at its number; else 0."
        )
        self.in_work = registry.gauge("serving_in_work", "Requests that are being answered.")
