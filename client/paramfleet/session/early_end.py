"""Notice that a script ends, and why, before it said that it was done."""

import atexit
import sys
from typing import Any, Protocol

from paramfleet_shared.errors import ContractError, IntegrityError

__all__ = ["watch_for_early_end"]


class _Abandon(Protocol):
    def __call__(self, error: str | None, *, may_return: bool = False) -> None: ...


def watch_for_early_end(abandon: _Abandon) -> None:
    """Call ``abandon`` when the script ends, with the exception that ended it, if one did.

    It says, too, whether another process that runs the script may do better: not where a rule
    was broken, or the job's state can't be trusted.
    """
    raised: list[tuple[str, bool]] = []
    report = sys.excepthook

    def remember(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        may_return = not isinstance(error, (ContractError, IntegrityError))
        raised.append((f"{kind.__name__}: {error}", may_return))
        report(kind, error, trace)

    sys.excepthook = remember

    def end() -> None:
        error, may_return = raised[0] if raised else (None, False)
        abandon(error, may_return=may_return)

    atexit.register(end)
