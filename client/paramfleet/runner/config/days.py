"""The days of a training by days: ``{20260101..20260131}`` is read here, and no shell runs.

Days are texts like ``20260131``, whose order is that of the calendar.
"""

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

__all__ = ["MOST_DAYS", "day_after", "days_of"]

MOST_DAYS = 36_600
"""A hundred years."""

_BRACES = re.compile(r"\{[^{}]*\}|[^\s{},]+")
_RULE = "days as {20260101..20260131}, or a list of days as 20260131"


def days_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return all days that some words name, in their order.

    A word is a day, a range ``20260101..20260131`` with both its ends, several of these in
    braces with commas between, or several with blanks between. A range has the days of the
    calendar.

    Raises:
        ValueError: if a word is none of these, or the days don't follow one another.
    """
    days: list[str] = []
    for word in words:
        for part in _parts(word):
            days += _range(part)
            if len(days) > MOST_DAYS:
                problem = f"at most {MOST_DAYS} days"
                raise ValueError(problem)
    for former, day in pairwise(days):
        if day <= former:
            problem = f"days in ascending order: {day} follows {former}"
            raise ValueError(problem)
    return tuple(days)


def day_after(day: str) -> str:
    """Return the next day of the calendar."""
    return (_date(day) + dt.timedelta(days=1)).strftime("%Y%m%d")


def _parts(word: str) -> Iterator[str]:
    """Yield the days and ranges of a word.

    Raises:
        ValueError: if there is anything else in it.
    """
    if re.sub(r"[\s,]", "", _BRACES.sub("", word)):
        raise ValueError(_RULE)
    for found in _BRACES.findall(word):
        yield from (each.strip() for each in found.strip("{}").split(","))


def _range(part: str) -> Sequence[str]:
    """Return the days of ``20260101`` or ``20260101..20260131``.

    Raises:
        ValueError: if it is neither, or names no day of the calendar.
    """
    first, dots, last = part.partition("..")
    begin = _date(first)
    end = _date(last) if dots else begin
    if end < begin:
        problem = f"a range that doesn't end before it begins, not {part}"
        raise ValueError(problem)
    count = (end - begin).days + 1
    if count > MOST_DAYS:
        problem = f"at most {MOST_DAYS} days"
        raise ValueError(problem)
    return [(begin + dt.timedelta(days=n)).strftime("%Y%m%d") for n in range(count)]


def _date(day: str) -> dt.date:
    """Return the date of ``20260131``.

    Raises:
        ValueError: if it is none from 1970 on.
    """
    if not re.fullmatch(r"\d{8}", day, re.ASCII):
        raise ValueError(_RULE)
    try:
        date = dt.date(int(day[:4]), int(day[4:6]), int(day[6:]))
    except ValueError as error:
        problem = f"days of the calendar, which {day} isn't"
        raise ValueError(problem) from error
    if not 1970 <= date.year < 9999:
        problem = f"days from 1970 on, not {day}"
        raise ValueError(problem)
    return date
