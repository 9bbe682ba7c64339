"""Which checkpoint of a folder a job continues from."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from paramfleet_shared.checkpoint.numbering import number_of

__all__ = ["Choice", "Listed", "choose", "farther_than", "newest_first"]

_PLACE = re.compile(r"(\d{4}(?:0[1-9]|1[0-2])\d\d)/(0|[1-9]\d{0,3})", re.ASCII)
"""A checkpoint of a training by days: its day, and the pass that it is behind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One checkpoint of a folder, as its manifest and its files' lengths describe it."""

    name: str
    """Of its folder; behind the day's and a slash if a training by days has saved it."""

    path: str
    written_at: datetime
    """What its manifest says, else when the manifest, or the folder, was changed last."""

    step: int | None = None
    """Worker 0's; None if it doesn't say."""

    workers: int | None = None
    """Those of the job; None if it doesn't say."""

    servers: int = 0
    """Pservers that wrote files of it; 0 of one that a single process wrote."""

    tables: int = 0
    """Sparse ones."""

    dense: int = 0
    """Dense parameters."""

    rows: int = 0
    """Of all sparse tables."""

    bytes: int = 0
    """Of all its files but the manifest, as that says."""

    problem: str = ""
    """Why it isn't whole; empty if each file is there with its length."""

    unfinished: bool = False
    """Whether a save began it and didn't end: it never was whole."""

    consistent: bool | None = None
    """Whether it is a consistent cut; None if it doesn't say."""

    base: str = ""
    """The name of the one that it is an increment of; empty if it is whole by itself."""

    @property
    def whole(self) -> bool:
        """Return whether each of its files is there with its length."""
        return not self.problem

    @property
    def number(self) -> int:
        """Return which of the job's saves it is, as its name says; 0 if it has no number."""
        return number_of(self.name) or 0

    @property
    def place(self) -> int:
        """Return a number that grows with day and pass, as its name says; 0 if it has none."""
        found = _PLACE.fullmatch(self.name)
        return int(found[1]) * 10_000 + int(found[2]) if found else 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.name,
            "path": self.path,
            "written_at": self.written_at.isoformat(timespec="seconds"),
            "step": self.step,
            "workers": self.workers,
            "servers": self.servers,
            "tables": self.tables,
            "dense": self.dense,
            "rows": self.rows,
            "bytes": self.bytes,
            "whole": self.whole,
            "problem": self.problem,
            "consistent": self.consistent,
            "base": self.base,
        }


class Choice(NamedTuple):
    """What a job continues from, and what was passed over."""

    chosen: Listed | None
    """None if there is no whole checkpoint."""

    skipped: tuple[tuple[Listed, str], ...]
    """Newer ones, newest first, each with why."""

    @property
    def damaged(self) -> tuple[tuple[Listed, str], ...]:
        """Return those skipped that were whole once."""
        return tuple((each, why) for each, why in self.skipped if not each.unfinished)


def newest_first(found: Iterable[Listed]) -> list[Listed]:
    """Return checkpoints by their times; of one time, by number, step and name.

    A numbered one counts as written no earlier than those of lower numbers, and one behind a
    pass of a day no earlier than those of passes before: the clock may have been set back
    since, and ``latest``, ``keep`` and a training by days don't go by it either.
    """
    keys, newest = list[tuple[datetime, int, int, str, Listed]](), dict[bool, datetime]()
    ordered = sorted(found, key=lambda each: (each.number, each.place, each.written_at))
    for each in ordered:
        at, order = each.written_at, each.number or each.place
        if order:
            is_of_a_day = not each.number
            newest[is_of_a_day] = at = max(at, newest.get(is_of_a_day, at))
        keys.append((at, order, each.step or 0, each.name, each))
    return [key[-1] for key in sorted(keys, key=lambda key: key[:-1])][::-1]


def farther_than(chosen: Listed, found: Iterable[Listed]) -> Listed | None:
    """Return the checkpoint that has taken most steps, if that is more than the chosen one.

    Those of a training by days count their steps as their passes do. Files aren't read.

    Args:
        chosen: What a job continues from.
        found: All of a folder.
    """
    if chosen.step is None:
        return None
    others = [
        each
        for each in found
        if each.whole and each.step is not None and not (each.place and chosen.place)
    ]
    most = max(others, key=lambda each: each.step or 0, default=chosen)
    return most if (most.step or 0) > chosen.step else None


def choose(found: Sequence[Listed], problem_of: Callable[[Listed], str]) -> Choice:
    """Return the newest checkpoint that is whole.

    Args:
        found: All of a folder.
        problem_of: Reads everything of one; returns what is wrong, empty if nothing is. Only
            those that are candidates are read.
    """
    skipped: list[tuple[Listed, str]] = []
    for each in newest_first(found):
        why = each.problem or problem_of(each)
        if not why:
            return Choice(each, tuple(skipped))
        skipped.append((each, why))
    return Choice(None, tuple(skipped))
