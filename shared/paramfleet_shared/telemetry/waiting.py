"""Saying which workers one waits for, once that takes a while."""

import logging
from collections.abc import Collection, Mapping

__all__ = ["TOLD_AFTER_S", "named", "tell_waiting"]

log = logging.getLogger(__name__)

TOLD_AFTER_S = 10.0
"""Seconds until it is said, once."""

_RULE = (
    "every worker makes each call that all take part in (barriers, fleet.metrics, fleet.util) "
    "as often as the others"
)


def named(missing: Collection[int], places: Mapping[int, str]) -> str:
    """Return workers as words, as ``workers 1 (in step 18), 2``.

    Args:
        missing: Their ranks.
        places: Where they are, as far as is known.
    """
    each = [
        f"{rank} ({places[rank]})" if places.get(rank) else str(rank)
        for rank in sorted(missing)
    ]
    return f"worker{'s' if len(each) > 1 else ''} {', '.join(each)}"


def tell_waiting(
    at: str,
    missing: Collection[int],
    *,
    waited_s: float,
    at_most_s: float,
    places: Mapping[int, str] | None = None,
) -> None:
    """Warn by ``worker.waits_for_others``.

    Args:
        at: What all take part in.
        missing: Ranks of those that haven't come.
        waited_s: For how long it has been waited, in seconds.
        at_most_s: When it is given up, in seconds.
        places: Where those are, as far as is known.
    """
    facts = {
        "at": at,
        "missing": named(missing, places or {}),
        "waited_s": round(waited_s),
        "at_most_s": round(at_most_s),
        "reason": _RULE,
    }
    log.warning("worker.waits_for_others", extra=facts)
