"""Room for rows is claimed before any is created, and given back."""

from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.capacity import (
    TableCapacity,
    Wanted,
    _Count,
    claim_at_once,
    claim_counted,
)
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.parts import SparsePart
from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.tables.encoding import Encoded
from paramfleet_shared.tables.memory.reservation import CapacityError
from paramfleet_shared.tables.sparse import INDEX_BYTES, SparseShard
from paramfleet_shared.tables.spec import TableSpec

SPEC = TableSpec(name="e", kind="sparse", dim=2)


@pytest.fixture
async def owners() -> AsyncIterator[Owners]:
    owners = Owners(2)
    yield owners
    await owners.close()


def table(
    max_rows: int, *known: int, check_memory: Callable[[str, int], None] | None = None
) -> TableCapacity:
    """Return the room of a table with one block of one shard."""
    rows = SparseShard(SPEC, max_rows=max_rows, check_memory=check_memory)
    capacity = TableCapacity((Block(0, range(1), rows),))
    create(capacity, *known)
    return capacity


def create(capacity: TableCapacity, *ids: int) -> None:
    out = np.empty((len(ids), 2), np.float32)
    capacity.blocks[0].rows.pull(np.array(ids, np.int64), out, create=True)


def wanted(capacity: TableCapacity, *ids: int) -> Wanted:
    offsets = np.array([0, len(ids)], np.int64)
    rows = Encoded(np.empty((len(ids), 2), np.float32))
    return Wanted(capacity, SparsePart(np.array(ids, np.int64), offsets, rows))


def test_ids_that_all_fit_are_claimed_at_once_and_given_back() -> None:
    one = table(5, 1, 2)

    claims = claim_at_once([wanted(one, 2, 3, 4)])

    assert claims is not None
    assert one.num_claimed == 3
    assert claim_at_once([wanted(one, 1)]) is None
    claims.release()
    claims.release()
    assert one.num_claimed == 0
    assert claim_at_once([wanted(one, 1)]) is not None


def test_a_claim_that_one_table_refuses_is_made_in_none() -> None:
    one, other = table(5), table(1)

    assert claim_at_once([wanted(one, 1, 2), wanted(other, 3, 4)]) is None

    assert one.num_claimed == other.num_claimed == 0
    assert not one.claims


def test_rows_that_claims_have_created_take_their_room() -> None:
    one = table(6)
    for start in (0, 2, 4):
        claims = claim_at_once([wanted(one, start, start + 1)])
        assert claims is not None
        create(one, start, start + 1)
        claims.release()

    assert claim_at_once([wanted(one, 6)]) is None


def test_two_parts_for_one_table_need_room_for_both() -> None:
    assert claim_at_once([wanted(table(3), 1, 2)]) is not None
    one = table(3)
    assert claim_at_once([wanted(one, 1, 2), wanted(one, 3, 4)]) is None


async def test_only_new_ids_count_where_room_is_short(owners: Owners) -> None:
    one = table(5, 1, 2, 3)

    claims = await claim_counted([wanted(one, 1, 2, 3, 4, 4), wanted(one, 5, 4)], owners)

    create(one, 4, 5)
    claims.release()
    assert one.num_claimed == 0
    with pytest.raises(CapacityError, match="new rows don't fit beside its 5 rows, at most 5"):
        await claim_counted([wanted(one, 6)], owners)


async def test_rows_that_several_are_about_to_create_count_once(owners: Owners) -> None:
    one = table(4, 1)
    first = claim_at_once([wanted(one, 2, 3, 1)])
    assert first is not None

    second = await claim_counted([wanted(one, 2, 3)], owners)
    third = await claim_counted([wanted(one, 3, 4)], owners)

    with pytest.raises(CapacityError):
        await claim_counted([wanted(one, 5)], owners)
    for claims in (first, second, third):
        claims.release()
    await claim_counted([wanted(one, 5)], owners)


async def test_nothing_is_claimed_if_a_table_has_no_room(owners: Owners) -> None:
    one, other = table(5, 1), table(2, 7, 8)

    with pytest.raises(CapacityError):
        await claim_counted([wanted(one, 2), wanted(other, 9)], owners)

    assert one.num_claimed == other.num_claimed == 0


async def test_memory_is_asked_for_before_the_rows_come(owners: Owners) -> None:
    asked: list[int] = []
    free = 10_000_000

    def check(arithmetic: str, num_bytes: int) -> None:
        asked.append(num_bytes)
        if num_bytes > free:
            raise TableMemoryError(
                table="e",
                arithmetic=arithmetic,
                num_bytes=num_bytes,
                free=free,
                total=1,
                kept=0,
            )

    one = table(1 << 20, check_memory=check)
    row_bytes = 2 * 4 + INDEX_BYTES

    assert claim_at_once([wanted(one, 1, 2, 3)]) is None, "it asks for some more than these"
    claims = await claim_counted([wanted(one, 1, 2, 3)], owners)
    assert asked[-1] == 3 * row_bytes
    free = 0
    create(one, 1, 2, 3)
    claims.release()
    assert one.blocks[0].rows.num_rows == 3, "what is claimed is not refused"
    with pytest.raises(TableMemoryError, match="1 more rows x 44 bytes"):
        await claim_counted([wanted(one, 4)], owners)


async def test_claims_hold_for_the_rows_of_a_load(owners: Owners) -> None:
    one = table(5, 1, 2)
    claims = claim_at_once([wanted(one, 3, 4)])
    assert claims is not None

    one.replace((Block(0, range(1), SparseShard(SPEC, max_rows=3)),))

    assert claim_at_once([wanted(one, 5, 6)]) is None
    await claim_counted([wanted(one, 3, 5)], owners)
    claims.release()


def test_rows_that_come_between_a_count_and_its_claim_have_it_counted_again() -> None:
    one = table(5, 1, 2)
    count = _Count(one, one.blocks[0], [wanted(one, 3, 4).part])
    count.job().act()

    claims = claim_at_once([wanted(one, 5, 6)])
    assert claims is not None
    create(one, 5, 6)
    claims.release()

    assert not count.fits()


async def test_what_was_counted_is_counted_again_once_rows_were_removed(owners: Owners) -> None:
    one = table(3, 1, 2, 3)
    count = _Count(one, one.blocks[0], [wanted(one, 1, 2, 3).part])
    await owners.run([count.job()])
    assert count.fits()

    one.note_removal(1)

    assert not count.fits()


async def test_what_removed_rows_leave_is_kept_for_those_who_hold_room(owners: Owners) -> None:
    one = table(3, 1, 2, 3)
    rows = one.blocks[0].rows
    claims = await claim_counted([wanted(one, 1, 2, 3)], owners)

    one.note_removal(1)
    rows.release(rows.remove(np.array([2])))

    assert claim_at_once([wanted(one, 9)]) is None
    with pytest.raises(CapacityError):
        await claim_counted([wanted(one, 9)], owners)
    create(one, 1, 2, 3)
    assert rows.num_rows == 3
    rows.release(rows.remove(np.array([1])))
    claims.release()
    assert claim_at_once([wanted(one, 9)]) is not None
