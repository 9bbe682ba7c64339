"""Saying which workers one waits for, once that takes a while."""

import logging
from collections.abc import Collection

__all__ = ["TOLD_AFTER_S", "tell_waiting"]

log = logging.getLogger(__name__)

TOLD_AFTER_S = 10.0
"""Seconds until it is said, once."""

_RULE = (
    "every worker makes each call that all take part in (barriers, fleet.metrics, fleet.util) "
    "as often as the others"
)


def tell_waiting(
    at: str, missing: Collection[int], *, waited_s: float, at_most_s: float
) -> None:
    """Warn by ``worker.waits_for_others``.

    Args:
        at: What all take part in.
        missing: Ranks of those that haven't come.
        waited_s: For how long it has been waited, in seconds.
        at_most_s: When it is given up, in seconds.
    """
    ranks = ", ".join(map(str, sorted(missing)))
    facts = {
        "at": at,
        "missing": f"worker{'s' if len(missing) > 1 else ''} {ranks}",
        "waited_s": round(waited_s),
        "at_most_s": round(at_most_s),
        "reason": _RULE,
    }
    log.warning("worker.waits_for_others", extra=facts)
