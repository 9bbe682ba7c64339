"""The names of the checkpoints that a job writes by itself: ``000012-step-4800``."""

import re

__all__ = ["MOST_NUMBER", "is_partial", "number_of", "numbered_name", "step_of"]

MOST_NUMBER = 10**18 - 1
"""The highest that a name may have: ``number_of`` takes one of more digits for no number."""

_NAME = re.compile(r"(\d{6,18})-step-(\d+)")
_PARTIAL = re.compile(r"\.\d{6,18}-step-\d+\.[0-9a-f]{8}\.partial")


def numbered_name(number: int, *, step: int) -> str:
    """Return the name of a folder.

    Args:
        number: Which of the job's saves it is, from 1 to ``MOST_NUMBER``; it goes on over
            restarts.
        step: After how many steps.
    """
    return f"{number:06d}-step-{step}"


def number_of(name: str) -> int | None:
    """Return which save a folder's name says that it is; None if it isn't such a name."""
    numbered = _NAME.fullmatch(name)
    return int(numbered[1]) if numbered else None


def step_of(name: str) -> int | None:
    """Return after how many steps a folder's name says that it is; None if it says none."""
    numbered = _NAME.fullmatch(name)
    return int(numbered[2]) if numbered else None


def is_partial(name: str) -> bool:
    """Return whether a folder's name is that of a save that isn't complete, or is removed."""
    return _PARTIAL.fullmatch(name) is not None
