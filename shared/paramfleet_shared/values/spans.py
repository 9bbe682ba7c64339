"""Ranges of a vector: which values of it are meant, and how many updates each has missed.

Legend: a span is (start, stop), with values from ``start`` to before ``stop``. Spans of one
list are in order, disjoint and not empty.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["MissedUpdates", "Span", "complement", "moved", "union"]

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans of all values that some span has. The given ones may overlap."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        elif start < stop:
            found.append((start, stop))
    return tuple(found)


def complement(spans: Iterable[Span], within: Span) -> tuple[Span, ...]:
    """Return the spans of those values of ``within`` that no span has."""
    found, (at, end) = [], within
    for start, stop in spans:
        if at < start:
            found.append((at, min(start, end)))
        at = max(at, stop)
    if at < end:
        found.append((at, end))
    return tuple(found)


def moved(spans: Iterable[Span], within: Span) -> tuple[Span, ...]:
    """Return the parts of spans that are inside ``within``, counted from its start."""
    first, end = within
    cut = ((max(start, first) - first, min(stop, end) - first) for start, stop in spans)
    return tuple((start, stop) for start, stop in cut if start < stop)


class MissedUpdates:
    """How many of a vector's updates had no gradient for each value: 0 for nearly all.

    torch counts the steps of each parameter by itself: one without a gradient isn't stepped.

    Args:
        counts: (start, stop, count) of spans in order, with counts above 0; others have 0.
    """

    def __init__(self, counts: Iterable[tuple[int, int, int]] = ()) -> None:
        self._counts = tuple(counts)

    def __bool__(self) -> bool:
        """Return whether any value has missed an update."""
        return bool(self._counts)

    def __eq__(self, other: object) -> bool:
        """Return whether another one has the same counts."""
        if not isinstance(other, MissedUpdates):
            return NotImplemented
        return self.counts() == other.counts()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def counts(self) -> tuple[tuple[int, int, int], ...]:
        """Return (start, stop, count) of the spans whose values have missed some."""
        return self._counts

    def pieces(self, span: Span) -> Iterator[tuple[int, int, int]]:
        """Yield (start, stop, count) of all values of a span, in order."""
        at, end = span
        for start, stop, count in self._counts:
            if stop <= at or start >= end:
                continue
            if at < start:
                yield at, start, 0
            yield max(at, start), min(stop, end), count
            at = min(stop, end)
        if at < end:
            yield at, end, 0

    def add(self, spans: Sequence[Span]) -> None:
        """Count one more missed update for the values of spans."""
        if not spans:
            return
        have = [(start, stop) for start, stop, _ in self._counts]
        bounds = sorted({bound for span in (*have, *spans) for bound in span})
        counts: list[tuple[int, int, int]] = []
        for start, stop in pairwise(bounds):
            ((_, _, count),) = self.pieces((start, stop))
            count += any(first <= start < last for first, last in spans)
            if not count:
                continue
            if counts and counts[-1][1:] == (start, count):
                counts[-1] = counts[-1][0], stop, count
            else:
                counts.append((start, stop, count))
        self._counts = tuple(counts)

    def step(
        self, stepping: Sequence[Span], number: int, within: Span
    ) -> list[tuple[int, int, int]]:
        """Return the steps that an update makes, and count it as missed by the other values.

        Args:
            stepping: Which values have a gradient.
            number: The update's, from 1.
            within: What it is an update of.

        Returns:
            (start, stop, the number of their step) of the values that step.
        """
        found = [
            (start, stop, number - count)
            for span in stepping
            for start, stop, count in self.pieces(span)
        ]
        self.add(complement(stepping, within))
        return found

    def part(self, within: Span) -> "MissedUpdates":
        """Return the counts of the values of a span, by their places from its start."""
        first = within[0]
        found = self.pieces(within)
        return MissedUpdates((a - first, b - first, count) for a, b, count in found if count)

    @classmethod
    def checked(cls, counts: Any, size: int) -> "MissedUpdates":
        """Return counts that came from a disk or the network.

        Args:
            counts: A list of [start, stop, count] of spans.
            size: Of the vector.

        Raises:
            ValueError: if they aren't counts of spans in order within the vector.
        """
        found, at = [], 0
        if type(counts) is not list:
            message = "counts of missed updates must be a list"
            raise ValueError(message)
        for each in counts:
            is_count = type(each) is list and [type(number) for number in each] == [int] * 3
            if not is_count or not at <= each[0] < each[1] <= size or each[2] < 1:
                message = f"{each!r} isn't [start, stop, count] of values in {at}..{size}"
                raise ValueError(message)
            found.append((each[0], each[1], each[2]))
            at = each[1]
        return cls(found)

    @classmethod
    def joined(cls, parts: Iterable[tuple[int, "MissedUpdates"]]) -> "MissedUpdates":
        """Return the counts of a vector that parts of it have, each from a place on."""
        counts: list[tuple[int, int, int]] = []
        for at, part in sorted(parts, key=lambda each: each[0]):
            for start, stop, count in part.counts():
                if counts and counts[-1][1:] == (at + start, count):
                    counts[-1] = counts[-1][0], at + stop, count
                else:
                    counts.append((at + start, at + stop, count))
        return cls(counts)
