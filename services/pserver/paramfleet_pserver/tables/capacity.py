"""Room for the rows that requests in progress may create.

A request that changes tables changes all of them or none. So it claims room in every table
that it may create rows in, before the first block changes, and holds it until all have.

Mostly that is a comparison: if each block has room and memory for all ids as if each were new
and its own, beside what others have claimed, the request can't fail. Only where a block is
nearly full, or memory is short, the owners count which ids are new; then the request claims
room for these in all blocks, or is refused with nothing changed.

Claims are made and released on the event loop.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.parts import SparsePart
from paramfleet_shared.errors import FleetError
from paramfleet_shared.values.sorting import each_once

__all__ = ["Claims", "TableCapacity", "Wanted", "claim_at_once", "claim_counted"]


class TableCapacity:
    """What is claimed of one table's room.

    Args:
        blocks: The table's.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        """Other ones after a load; what is claimed stays so."""
        self.claims: set[_Claim] = set()
        self.num_claimed = 0
        """Of all claims: no fewer than the rows that they will create in any one block."""
        self.num_removals = 0
        """How often rows were removed; what was counted before may hold no more."""
        self._num_kept = 0
        """Of what is claimed: for rows of claims that were removed since."""
        self._num_sure = 0
        """So many more each block has room for. It isn't raised when claims are released, since
        the rows may be there by then, but found anew when it is used up."""

    def surely_has(self, num: int) -> bool:
        """Return whether so many ids can come to each block as if each were new."""
        if num <= self._num_sure:
            return True
        rows = [block.rows for block in self.blocks]
        if not all(each.grant(each.num_taken + self.num_claimed + num) for each in rows):
            return False
        self._num_sure = min(each.num_granted for each in rows) - self.num_claimed
        return True

    def add(self, claim: "_Claim") -> None:
        """Count a claim that there is room for."""
        self.claims.add(claim)
        self.num_claimed += claim.num
        self._num_sure -= claim.num

    def drop(self, claim: "_Claim") -> None:
        """Count a claim no more: its rows are there, or won't come."""
        self.claims.discard(claim)
        self.num_claimed -= claim.num
        if not self.claims:
            self.num_claimed -= self._num_kept
            self._num_kept = 0

    def note_removal(self, num: int) -> None:
        """Note that ``num`` rows at most are about to be removed.

        Claims that were counted may be for some of them, which they will create again. So what
        the rows leave is kept as long as there are claims.
        """
        self.num_removals += 1
        if any(claim.num < len(claim.part.ids) for claim in self.claims):
            self._num_kept += num
            self.num_claimed += num
            self._num_sure -= num

    def replace(self, blocks: Sequence[Block]) -> None:
        """Put other blocks into the place of these, for which the claims hold on."""
        self.blocks = blocks
        self._num_sure = 0
        if self.claims:
            for block in blocks:
                block.rows.grant_exactly(block.rows.num_taken + self.num_claimed)


class Wanted(NamedTuple):
    """Ids that a request may create rows of in a table."""

    capacity: TableCapacity
    part: SparsePart


class _Claim:
    """Room in each block of one table."""

    __slots__ = ("capacity", "num", "part")

    def __init__(self, wanted: Wanted, num: int) -> None:
        self.capacity, self.part = wanted
        self.num = num
        self.capacity.add(self)

    def ids_of(self, block: Block) -> NDArray[np.int64]:
        return self.part.ids[self.part.within(block.shards)]


class Claims:
    """The room that one request holds."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[_Claim] = []

    def add(self, wanted: Wanted, num: int) -> None:
        """Claim room for ``num`` rows in each block; that there is some was found before."""
        self._held.append(_Claim(wanted, num))

    def release(self) -> None:
        """Give the room back: the rows are there, or won't come. May be repeated."""
        for claim in self._held:
            claim.capacity.drop(claim)
        self._held.clear()


def claim_at_once(wanted: Iterable[Wanted]) -> Claims | None:
    """Claim room for all ids as if each were new; None, with nothing claimed, if that fails."""
    claims = Claims()
    for each in wanted:
        num = len(each.part.ids)
        if not each.capacity.surely_has(num):
            claims.release()
            return None
        claims.add(each, num)
    return claims


async def claim_counted(wanted: Sequence[Wanted], owners: Owners) -> Claims:
    """Claim room for those ids that are new, which the owners count.

    Others go on meanwhile: what a caller found out before may have changed.

    Raises:
        CapacityError: if a block has no room for them; nothing is claimed.
        TableMemoryError: if there is no memory for them; nothing is claimed.
    """
    while True:
        counts = [
            _Count(capacity, block, [w.part for w in wanted if w.capacity is capacity])
            for capacity in dict.fromkeys(each.capacity for each in wanted)
            for block in capacity.blocks
        ]
        await owners.run([count.job() for count in counts])
        # Who claimed meanwhile may hold what is counted here: then it is counted with them.
        fit = [count.fits() for count in counts]
        if all(fit):
            claims = Claims()
            for count in counts:
                count.grant()
            for each in wanted:
                most = max(c.num_new for c in counts if c.capacity is each.capacity)
                claims.add(each, most)
            return claims


class _Count:
    """Counts the ids of a request that are new to one block."""

    def __init__(
        self, capacity: TableCapacity, block: Block, parts: Sequence[SparsePart]
    ) -> None:
        self.capacity = capacity
        self.num_new = 0
        self._block = block
        self._ids = np.concatenate([part.ids[part.within(block.shards)] for part in parts])
        self._others = frozenset(capacity.claims)
        self._num_removals = capacity.num_removals
        self._num_rows = 0
        self._num_in_all = 0

    def job(self) -> Job:
        """Return the count as work for the block's owner."""
        return Job(self._block.owner, len(self._ids), partial(self._act, self._block))

    def fits(self) -> bool:
        """Return whether the block has room; False asks to count again.

        Raises:
            CapacityError: if it has none.
            TableMemoryError: if there is no memory.
        """
        if self._block not in self.capacity.blocks:  # others were loaded
            return False
        if self.capacity.num_removals != self._num_removals:  # what was known may be new
            return False
        if not self.num_new:
            return True
        if self._block.rows.num_rows != self._num_rows:
            return False  # others claimed, created their rows, and gave the claim back since
        self._block.rows.check_capacity(self._num_in_all)
        try:
            self._block.rows.check_capacity(self._num_in_all + self._num_since())
        except FleetError:  # they may be about to create the same rows
            return False
        return True

    def grant(self) -> None:
        """Promise the room that fits."""
        if self.num_new:
            self._block.rows.grant_exactly(self._num_in_all + self._num_since())

    def _num_since(self) -> int:
        since = self.capacity.claims - self._others
        return sum(len(claim.ids_of(self._block)) for claim in since)

    def _act(self, block: Block) -> None:
        self._num_rows = block.rows.num_rows
        new = block.rows.unknown(self._ids)
        self.num_new = len(new)
        if self.num_new:  # several may be about to create the same rows
            others = [block.rows.unknown(claim.ids_of(block)) for claim in self._others]
            every = each_once(np.concatenate([new, *others])) if others else new
            self._num_in_all = block.rows.num_taken + len(every)
