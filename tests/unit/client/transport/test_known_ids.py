"""Ids that travel as numbers: what a worker says is what the pservers understand."""

import numpy as np
import pytest

from paramfleet.transport.known_ids import _PATIENCE, KnownIds, Named
from paramfleet_pserver.tables.known_ids import KnownIds as Books
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors.served import KnownIdsGoneError
from paramfleet_shared.tables.partition import partition

TWO = Placement(endpoints=("a:1", "b:1"), num_shards=8)


def rows_of(ids: list[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    parted = partition(np.asarray(ids, np.int64), 8, by_id=True)
    return parted.ids, parted.offsets


def understood(named: Named, offsets: np.ndarray, books: list[Books]) -> np.ndarray:
    """Return the ids that pservers make of what travels, in the order of the rows."""
    found = np.empty_like(named.ids)
    for server, (numbers, known, others, base) in enumerate(named.parts):
        ids = books[server].read(0, named.book, numbers, others, base)
        for shard, place in enumerate(TWO.shards_of(server)):
            start, count = offsets[place], known[shard + 1] - known[shard]
            found[start : start + count] = ids[known[shard] : known[shard + 1]]
            rest = others[start - offsets[TWO.shards_of(server).start] - known[shard] :]
            length = offsets[place + 1] - start - count
            found[start + count : offsets[place + 1]] = rest[:length]
    return found


def test_what_travels_means_the_ids_that_were_asked_for() -> None:
    random = np.random.default_rng(0)
    names, books = KnownIds("t", TWO), [Books("t"), Books("t")]
    universe = random.integers(-(2**62), 2**62, 3000)

    num_named = []
    for _ in range(40):
        ids, offsets = rows_of(random.choice(universe, 400, replace=False))
        named = names.name(ids, offsets)
        assert np.array_equal(named.ids, ids[named.order])
        assert np.array_equal(understood(named, offsets, books), named.ids)
        names.confirm(named)
        num_named.append(sum(len(part.numbers) for part in named.parts))

    assert num_named[0] == 0
    assert num_named[-1] > 380


def test_new_ids_count_once_they_are_answered_and_one_pull_brings_some_at_a_time() -> None:
    names = KnownIds("t", TWO, incarnation=3)
    ids, offsets = rows_of(np.arange(50))

    first, second = names.name(ids, offsets), names.name(*rows_of(np.arange(40, 90)))
    names.confirm(second)
    third = names.name(ids, offsets)
    names.confirm(first)
    fourth = names.name(*rows_of(np.arange(30, 70)))

    assert first.book == 3 << 32
    assert [part.base for part in first.parts] == [0, 0]
    for named in (second, third):
        assert [part.base for part in named.parts] == [None, None]
        assert all(len(part.numbers) == 0 for part in named.parts)
    assert [part.base for part in fourth.parts] == [len(part.others) for part in first.parts]
    assert sum(len(part.numbers) for part in fourth.parts) == 20
    for part in fourth.parts:
        for start, stop in zip(part.known[:-1], part.known[1:], strict=True):
            assert (np.diff(part.numbers[start:stop]) > 0).all()


def test_after_a_pull_without_an_end_a_new_book_begins() -> None:
    names = KnownIds("t", TWO)
    ids, offsets = rows_of(np.arange(50))
    names.confirm(names.name(ids, offsets))
    brings = names.name(*rows_of(np.arange(60)))

    names.give_up(names.name(ids, offsets))
    assert names.name(ids, offsets).book == 0
    names.give_up(brings)
    again = names.name(ids, offsets)
    names.confirm(brings)

    assert again.book == 1
    assert [part.base for part in again.parts] == [0, 0]


def test_a_pull_that_nobody_ends_doesnt_hold_up_others_for_ever() -> None:
    names = KnownIds("t", TWO)
    ids, offsets = rows_of(np.arange(50))
    names.name(ids, offsets)

    bases = [names.name(ids, offsets).parts[0].base for _ in range(_PATIENCE + 1)]

    assert bases == [None] * _PATIENCE + [0]


def test_a_server_that_lost_the_book_says_so_and_gets_another() -> None:
    names, books = KnownIds("t", TWO), [Books("t"), Books("t")]
    ids, offsets = rows_of(np.arange(50))
    first = names.name(ids, offsets)
    understood(first, offsets, books)
    names.confirm(first)

    books[1] = Books("t")
    only_new = names.name(*rows_of(np.arange(100, 150)))
    for named in (only_new, names.name(ids, offsets)):
        with pytest.raises(KnownIdsGoneError) as gone:
            understood(named, offsets, books)
        names.lose(gone.value.facts["book"])
    again = names.name(ids, offsets)

    assert again.book == 1
    assert np.array_equal(understood(again, offsets, books), again.ids)


def test_a_full_book_takes_no_more() -> None:
    names = KnownIds("t", TWO, most=40)
    names.confirm(names.name(*rows_of(np.arange(50))))

    more = names.name(*rows_of(np.arange(200)))

    assert [part.base for part in more.parts] == [None, None]
    assert sum(len(part.numbers) for part in more.parts) == 50


def test_a_step_without_rows_brings_nothing() -> None:
    names = KnownIds("t", TWO)

    named = names.name(*rows_of([]))

    assert [part.base for part in named.parts] == [None, None]
    assert len(named.ids) == 0
