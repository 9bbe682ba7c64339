"""Ranges of a vector: which values of it are meant, and how many updates each has missed.

Legend: a span is (start, stop), with values from ``start`` to before ``stop``. Spans of one
list are in order, disjoint and not empty.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MissedUpdates", "Span", "complement", "moved", "union"]

Span = tuple[int, int]

_MOST = 1 << 53
"""Missed updates are fewer."""


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


def _flat(spans: Sequence[Span]) -> NDArray[np.int64]:
    """Return the bounds of spans, in order: int64 [2n]."""
    return np.array(spans, np.int64).reshape(-1)


def _are_inside(places: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return of each place whether a span of such bounds has it."""
    before: NDArray[np.int64] = np.searchsorted(bounds, places, side="right")
    return (before & 1).astype(np.bool_)


class MissedUpdates:
    """How many of a vector's updates had no gradient for each value: 0 for nearly all.

    torch counts the steps of each parameter by itself: one without a gradient isn't stepped.
    All takes time in proportion to the spans there are: a server has no other while it counts.

    Args:
        counts: (start, stop, count) of spans in order, with counts above 0; others have 0.
    """

    def __init__(self, counts: Iterable[tuple[int, int, int]] = ()) -> None:
        self._edges = np.empty(0, np.int64)
        """Places from which on values have another count than before. [k]"""
        self._levels = np.zeros(1, np.int64)
        """Counts: 0 before the first of them, and that from each of them on. [k + 1]"""
        given = np.array([*counts], np.int64).reshape(-1, 3)
        if len(given):
            edges, which = np.unique(given[:, :2], return_inverse=True)
            changes, places = np.zeros(len(edges), np.int64), which.reshape(-1, 2)
            changes[places[:, 0]] += given[:, 2]
            changes[places[:, 1]] -= given[:, 2]
            self._set(edges, np.cumsum(changes))

    def __bool__(self) -> bool:
        """Return whether any value has missed an update."""
        return bool(len(self._edges))

    def __eq__(self, other: object) -> bool:
        """Return whether another one has the same counts."""
        if not isinstance(other, MissedUpdates):
            return NotImplemented
        return self.counts() == other.counts()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def counts(self) -> tuple[tuple[int, int, int], ...]:
        """Return (start, stop, count) of the spans whose values have missed some."""
        edges, levels = self._edges.tolist(), self._levels[1:].tolist()
        return tuple(each for each in zip(edges, edges[1:], levels, strict=False) if each[2])

    def pieces(self, span: Span) -> Iterator[tuple[int, int, int]]:
        """Yield (start, stop, count) of all values of a span, in order."""
        at, end = span
        if at >= end:
            return
        inside = self._edges[(self._edges > at) & (self._edges < end)]
        starts = np.concatenate(([at], inside))
        stops = np.concatenate((inside, [end]))
        levels = self._at(starts)
        yield from zip(starts.tolist(), stops.tolist(), levels.tolist(), strict=True)

    def add(self, spans: Sequence[Span]) -> None:
        """Count one more missed update for the values of spans."""
        if spans:
            bounds = _flat(spans)
            edges = np.unique(np.concatenate((self._edges, bounds)))
            self._set(edges, self._at(edges) + _are_inside(edges, bounds))

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
        bounds = _flat(stepping)
        edges = np.unique(np.concatenate((self._edges, bounds, within)))
        levels, steps = self._at(edges), _are_inside(edges, bounds)
        misses = (edges >= within[0]) & (edges < within[1]) & ~steps
        differs = np.ones(len(edges), np.bool_)
        differs[1:] = (steps[1:] != steps[:-1]) | (levels[1:] != levels[:-1])
        runs = np.append(edges[differs], edges[-1])
        starts, stops = runs[:-1], runs[1:]
        chosen, numbers = steps[differs], number - levels[differs]
        found = (each[chosen].tolist() for each in (starts, stops, numbers))
        self._set(edges, levels + misses)
        return [*zip(*found, strict=True)]

    def _at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts of values."""
        return self._levels[np.searchsorted(self._edges, places, side="right")]

    def _set(self, edges: NDArray[np.int64], levels: NDArray[np.int64]) -> None:
        """Have such counts from such places on; the last one is 0."""
        differs = levels != np.concatenate(([0], levels[:-1]))
        self._edges = edges[differs]
        self._levels = np.concatenate(([0], levels[differs]))

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
            if not is_count or not at <= each[0] < each[1] <= size or not 0 < each[2] < _MOST:
                message = f"{each!r} isn't [start, stop, count] of values in {at}..{size}"
                raise ValueError(message)
            found.append((each[0], each[1], each[2]))
            at = each[1]
        return cls(found)

    @classmethod
    def joined(cls, parts: Iterable[tuple[int, "MissedUpdates"]]) -> "MissedUpdates":
        """Return the counts of a vector that parts of it have, each from a place on."""
        ordered = sorted(parts, key=lambda each: each[0])
        return cls(
            (at + start, at + stop, count)
            for at, part in ordered
            for start, stop, count in part.counts()
        )
