"""The books of ids that workers name by numbers."""

import numpy as np
import pytest

from paramfleet_pserver.tables.known_ids import FIRST_ROOM, KnownIds
from paramfleet_shared.errors.served import KnownIdsGoneError

NONE = np.empty(0, np.int64)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_ids_have_the_numbers_in_whose_order_they_came() -> None:
    known = KnownIds("t")
    assert known.read(0, 5, NONE, ids(70, 60), 0).tolist() == []
    assert known.read(0, 5, ids(1, 0), ids(50), 2).tolist() == [60, 70]
    assert known.read(0, 5, ids(2), ids(9, 9), None).tolist() == [50]

    many = np.arange(3 * FIRST_ROOM)
    known.read(0, 5, ids(0), many, 3)
    assert known.read(0, 5, ids(0, 3, FIRST_ROOM + 3, 2), NONE, None).tolist() == [
        70,
        0,
        FIRST_ROOM,
        50,
    ]


def test_a_retry_changes_nothing() -> None:
    known = KnownIds("t")
    for _ in range(2):
        known.read(0, 5, NONE, ids(70, 60), 0)
    for _ in range(2):
        assert known.read(0, 5, ids(1), ids(50), 2).tolist() == [60]

    assert known.read(0, 5, ids(0, 1, 2), NONE, None).tolist() == [70, 60, 50]


@pytest.mark.parametrize(
    ("book", "numbers", "others", "base"),
    [
        (5, ids(2), NONE, None),  # a number that none has
        (5, ids(-1), NONE, None),
        (5, NONE, ids(1), 3),  # a gap
        (5, NONE, ids(1), -1),
        (5, NONE, np.arange(99), 2),  # more than a book holds
        (6, NONE, ids(1), 2),  # another book, not from its begin
        (6, ids(0), ids(1), 0),
        (6, NONE, NONE, None),
        (4, NONE, ids(1), 0),  # an older one
    ],
)
def test_what_isnt_known_is_refused_and_changes_nothing(
    book: int, numbers: np.ndarray, others: np.ndarray, base: int | None
) -> None:
    known = KnownIds("t", most=100)
    known.read(0, 5, NONE, ids(70, 60), 0)

    with pytest.raises(KnownIdsGoneError) as gone:
        known.read(0, book, numbers, others, base)

    assert gone.value.facts == {"table": "t", "rank": 0, "book": book}
    assert known.read(0, 5, ids(0, 1), NONE, None).tolist() == [70, 60]


def test_each_worker_has_its_own_and_a_newer_book_replaces_it() -> None:
    known = KnownIds("t")
    known.read(0, 5, NONE, ids(70), 0)
    known.read(1, 5, NONE, ids(80), 0)
    known.read(0, 6, NONE, ids(90), 0)

    assert known.read(1, 5, ids(0), NONE, None).tolist() == [80]
    assert known.read(0, 6, ids(0), NONE, None).tolist() == [90]
    with pytest.raises(KnownIdsGoneError):
        known.read(0, 5, ids(0), NONE, None)
    known.forget(0)
    with pytest.raises(KnownIdsGoneError):
        known.read(0, 6, ids(0), NONE, None)
