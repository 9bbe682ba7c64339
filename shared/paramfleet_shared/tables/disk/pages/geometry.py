"""How many pages there are for how many rows: linear hashing with partial expansions.

The pages of a round are ``groups`` groups of two. One group after the other gets a third
page, then one after the other a fourth; then groups of four are twice as many of two. Page
``t`` of group ``g`` has the number ``g + t groups``, so new pages are always the last, and
pages of groups beside each other are beside each other. Contraction is the same, backwards.
"""

import math
from typing import NamedTuple

__all__ = [
    "MAX_PAGE_BYTES",
    "MIN_PAGE_BYTES",
    "Geometry",
    "Regrouping",
    "fullest_for",
    "page_bytes_for",
    "rows_in",
]

MIN_PAGE_BYTES, MAX_PAGE_BYTES = 4096, 65536
HEADER_BYTES, KEY_BYTES = 32, 8

_WANTED_ROWS = 8
"""Of a page: with fewer, many pages overflow."""

_SECOND_READS = 0.03
"""So many of the rows of the fullest pages may be on overflow pages."""

_BEGIN = 0.757
"""Load at which a half of a round begins, in parts of the fullest; see ``kernels.index``."""

_SLACK = 1.3
"""Pages go when there would be enough of them for so many times the rows."""


def page_bytes_for(row_bytes: int) -> int:
    """Return the bytes of pages for rows: 4 KiB, and more for wide rows."""
    wanted = HEADER_BYTES + _WANTED_ROWS * (KEY_BYTES + row_bytes)
    size = MIN_PAGE_BYTES
    while size < min(wanted, MAX_PAGE_BYTES):
        size *= 2
    return size


def rows_in(page_bytes: int, row_bytes: int) -> int:
    """Return how many rows a page holds."""
    return (page_bytes - HEADER_BYTES) // (KEY_BYTES + row_bytes)


def fullest_for(holds: int) -> float:
    """Return how full pages may get before they are expanded, so that few rows overflow.

    Args:
        holds: Rows of a page.
    """
    fullest = 0.95
    while fullest > 0.3 and _overflowing(fullest * holds, holds) > _SECOND_READS:
        fullest -= 0.05
    return fullest


def _overflowing(mean: float, holds: int) -> float:
    """Return which part of rows finds its page full, where pages have ``mean`` of them."""
    over = 0.0
    for count in range(holds + 1, int(holds + 12 * math.sqrt(mean) + 12)):
        share = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        over += (count - holds) * share
    return over / mean


class Regrouping(NamedTuple):
    """Groups whose rows go to other pages, and what there is afterwards."""

    first: int
    """The first of the groups."""
    num: int
    """How many of them."""
    before: int
    """Pages of each, before."""
    after: int
    groups: int
    """Of the round, during the change."""
    geometry: "Geometry"
    """Afterwards."""


class Geometry(NamedTuple):
    """The pages there are."""

    groups: int = 1
    """A power of 2."""
    pages: int = 2
    """From twice to four times the groups."""

    @classmethod
    def of(cls, num_rows: float, holds: int, fullest: float) -> "Geometry":
        """Return the pages for so many rows.

        Args:
            num_rows: In all.
            holds: Rows of a page.
            fullest: Of ``fullest_for``.
        """
        groups = 1
        begin = _BEGIN * fullest
        while num_rows / (2 * groups * holds) / 2 >= begin:
            groups *= 2
        per_group = num_rows / (groups * holds)
        spread = fullest - begin
        if per_group / 2 < fullest:
            share = max(0.0, (per_group / 2 - begin) / spread)
            return cls(groups, 2 * groups + math.ceil(share * groups))
        share = min(1.0, max(0.0, (per_group / 3 - begin) / spread))
        return cls(groups, 3 * groups + math.ceil(share * groups))

    def wanted(self, num_rows: float, holds: int, fullest: float) -> "Geometry":
        """Return the pages that there should be for so many rows: these, or more, or fewer."""
        more = Geometry.of(num_rows, holds, fullest)
        if more.pages >= self.pages:
            return more
        fewer = Geometry.of(num_rows * _SLACK, holds, fullest)
        return fewer if fewer.pages < self.pages else self

    def step_to(self, wanted: "Geometry", most: int) -> Regrouping | None:
        """Return the next step on the way to other pages; None if there is none.

        Args:
            wanted: Where to.
            most: Pages that a step may have to do with.
        """
        if wanted.pages == self.pages:
            return None
        limit = max(1, most // 4)
        if wanted.pages > self.pages:
            now = Geometry(2 * self.groups, self.pages) if self._is_whole else self
            before = 3 if now.pages >= 3 * now.groups else 2
            first = now.pages - before * now.groups
            num = min(limit, now.groups - first, wanted.pages - now.pages)
            after = now._replace(pages=now.pages + num)
            return Regrouping(first, num, before, before + 1, now.groups, after)
        is_least = self.pages == 2 * self.groups
        now = Geometry(self.groups // 2, self.pages) if is_least else self
        before = 4 if now.pages > 3 * now.groups else 3
        last = now.pages - (before - 1) * now.groups
        num = min(limit, last, now.pages - wanted.pages)
        after = now._replace(pages=now.pages - num)
        return Regrouping(last - num, num, before, before - 1, now.groups, after)

    @property
    def _is_whole(self) -> bool:
        return self.pages == 4 * self.groups
