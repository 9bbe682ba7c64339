"""Notice that a script ends, and why, before it said that it was done."""

import atexit
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["watch_for_early_end"]


def watch_for_early_end(abandon: Callable[[str | None], None]) -> None:
    """Call ``abandon`` when the script ends, with the exception that ended it, if one did."""
    raised: list[str] = []
    report = sys.excepthook

    def remember(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        raised.append(f"{kind.__name__}: {error}")
        report(kind, error, trace)

    sys.excepthook = remember
    atexit.register(lambda: abandon(raised[0] if raised else None))
