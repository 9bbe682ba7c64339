"""A pass is kept in pieces, and then wholly committed or wholly dropped."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given

from paramfleet_pserver.core.passes import HeldPass, PassBook, Piece
from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.served import (
    PassCommittedError,
    PassInDoubtError,
    PassNotPreparedError,
    PassNumberError,
    PassPiecesError,
)
from paramfleet_shared.values.ids import Rank


def piece(
    number: int = 0,
    *,
    of: int = 1,
    rank: int = 0,
    incarnation: int = 1,
    pieces: int | None = None,
) -> Piece:
    return Piece(Rank(rank), incarnation, of, number, pieces)


def prepare(book: PassBook[str], *pieces: Piece) -> list[bool]:
    """Prepare pieces, each with a content that names its rank and number."""
    fresh = []
    for each in pieces:
        fresh.append(book.check_prepare(each))
        if fresh[-1]:
            book.prepare(each, f"{each.rank}.{each.piece}")
    return fresh


def state_of(book: PassBook[str]) -> str:
    return book.state


def commit(book: PassBook[str], number: int, pieces: dict[int, int] | None) -> list[str] | None:
    named = None if pieces is None else {Rank(rank): num for rank, num in pieces.items()}
    return book.commit() if book.check_commit(number, named) else None


def test_pieces_come_in_the_order_of_ranks_whatever_came_first() -> None:
    book = PassBook[str]()
    prepare(book, piece(1, rank=1, pieces=2), piece(2, pieces=3), piece(0, rank=1))
    prepare(book, piece(0), piece(1))

    assert commit(book, 1, {0: 3, 1: 2}) == ["0.0", "0.1", "0.2", "1.0", "1.1"]

    assert (book.committed, book.state, book.held()) == (1, "absent", [])


def test_a_commit_that_comes_again_has_no_effect() -> None:
    book = PassBook[str]()
    prepare(book, piece())
    assert commit(book, 1, {0: 1}) == ["0.0"]
    prepare(book, piece(of=2))

    assert commit(book, 1, {0: 1}) is None
    assert commit(book, 1, None) is None

    assert (book.committed, book.state) == (1, "partial")


def test_a_piece_that_comes_again_is_not_fresh() -> None:
    book = PassBook[str]()

    assert prepare(book, piece(), piece(), piece(1, pieces=2), piece(1)) == [
        True, False, True, False,
    ]  # fmt: skip
    assert book.content(Rank(0), 1) == "0.1"
    assert book.content(Rank(0), 2) is book.content(Rank(1), 0) is None


@pytest.mark.parametrize("number", [1, 3, 9])
def test_only_the_next_pass_is_prepared(number: int) -> None:
    book = PassBook[str]()
    assert commit(book, 1, {}) == []

    with pytest.raises(PassNumberError, match=f"pass {number} can't.* is 2") as refused:
        book.check_prepare(piece(of=number))

    assert refused.value.facts == {"number": number, "expected": 2}


def test_what_a_former_process_has_prepared_must_be_decided_about_first() -> None:
    book = PassBook[str]()
    prepare(book, piece(incarnation=1), piece(rank=1))

    with pytest.raises(PassInDoubtError, match="worker 0: its former process") as refused:
        book.check_prepare(piece(incarnation=2))

    assert refused.value.facts == {"rank": 0, "number": 1}
    assert prepare(book, piece(1, rank=1)) == [True], "another worker goes on"
    book.check_abort(1)
    assert book.abort(1) == ["0.0", "1.0", "1.1"]
    assert prepare(book, piece(incarnation=2)) == [True]


@pytest.mark.parametrize(
    ("before", "late", "facts"),
    [
        (piece(4), piece(1, pieces=3), (4, 3)),
        (piece(1, pieces=2), piece(2), (2, 2)),
        (piece(1, pieces=2), piece(0, pieces=3), (1, 3)),
        (piece(1, pieces=2), piece(1, pieces=5), (1, 5)),
    ],
)
def test_a_piece_goes_with_how_many_there_are(
    before: Piece, late: Piece, facts: tuple[int, int]
) -> None:
    book = PassBook[str]()
    prepare(book, before)

    with pytest.raises(PassPiecesError, match=f"piece {facts[0]} doesn't fit") as refused:
        book.check_prepare(late)

    expected = {"rank": 0, "number": 1, "piece": facts[0], "pieces": facts[1]}
    assert refused.value.facts == expected


@pytest.mark.parametrize(
    ("named", "facts", "words"),
    [
        ({0: 3}, (0, 2, 3), "2 of worker 0's pieces are .* should be 3, from 0 on"),
        ({0: 1}, (0, 2, 1), "should be 1"),
        ({0: 2, 1: 1}, (1, 0, 1), "0 of worker 1's pieces"),
        ({1: 1}, (0, 2, 0), "should be 0"),
        ({}, (0, 2, 0), "2 of worker 0's"),
        (None, (0, 2, None), "the number of pieces is not known"),
    ],
)
def test_other_pieces_than_are_named_are_not_committed(
    named: dict[int, int] | None, facts: tuple[int, int, int | None], words: str
) -> None:
    book = PassBook[str]()
    prepare(book, piece(0), piece(1))

    with pytest.raises(PassNotPreparedError, match=words) as refused:
        commit(book, 1, named)

    rank, held, expected = facts
    about = {"number": 1, "rank": rank, "held": held, "named": expected}
    assert refused.value.facts == about
    assert (book.state, book.committed) == ("partial", 0)


def test_a_gap_between_pieces_is_not_committed() -> None:
    book = PassBook[str]()
    prepare(book, piece(0), piece(2, pieces=3))

    with pytest.raises(PassNotPreparedError, match="there should be 2"):
        commit(book, 1, {0: 2})
    with pytest.raises(PassNotPreparedError, match="there should be 3"):
        commit(book, 1, None)


@pytest.mark.parametrize(("number", "pieces"), [(1, None), (2, None), (2, {}), (3, {0: 1})])
def test_a_pass_of_which_nothing_is_here_is_not_committed(
    number: int, pieces: dict[int, int] | None
) -> None:
    book = PassBook[str]()
    if number > 1:
        prepare(book, piece(pieces=1))

    with pytest.raises(PassNotPreparedError, match=f"pass {number} can't be committed"):
        commit(book, number, pieces)

    with pytest.raises(PassNotPreparedError, match="no piece of it is prepared here"):
        commit(book, 9, None)


def test_what_is_whole_is_committed_without_naming_it() -> None:
    book = PassBook[str]()
    prepare(book, piece(1, pieces=2), piece(rank=1, pieces=1))
    assert state_of(book) == "partial"
    prepare(book, piece(0))

    assert state_of(book) == "prepared"
    assert book.held() == [
        HeldPass(Rank(0), 1, 1, 2, sealed=True),
        HeldPass(Rank(1), 1, 1, 1, sealed=True),
    ]
    assert commit(book, 1, None) == ["0.0", "0.1", "1.0"]


def test_an_abort_drops_all_and_may_come_again() -> None:
    book = PassBook[str]()
    prepare(book, piece(pieces=1))
    assert book.abort(2) == []
    assert book.state == "prepared", "another pass was named"
    assert [book.abort(1), book.abort(1)] == [["0.0"], []]
    prepare(book, piece(pieces=1))
    assert commit(book, 1, None) == ["0.0"]

    with pytest.raises(PassCommittedError, match="all passes up to 1 are") as refused:
        book.check_abort(1)

    assert refused.value.facts == {"number": 1, "committed": 1}


@dataclass
class Model:
    """A book as plain as can be: which pieces, whose, and how many each worker has said."""

    committed: int = 0
    held: dict[int, set[int]] = field(default_factory=dict)
    totals: dict[int, int] = field(default_factory=dict)

    def is_whole(self) -> bool:
        whole = [self.held[rank] == set(range(self.totals.get(rank, -1))) for rank in self.held]
        return bool(whole) and all(whole)


DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["prepare", "prepare", "prepare", "commit", "commit_all", "abort"]),
        st.integers(0, 1),
        st.integers(0, 2),
        st.sampled_from([None, None, 1, 2, 3]),
        st.sampled_from([0, 1, 1, 1, 2]),
    ),
    max_size=30,
)


@given(DEEDS)
def test_a_book_is_as_its_model_and_a_refusal_changes_nothing(
    deeds: list[tuple[str, int, int, int | None, int]],
) -> None:
    book, model = PassBook[str](), Model()
    for kind, rank, number, pieces, ahead in deeds:
        before = (book.committed, book.held())
        of = book.committed + ahead
        named: dict[int, int] = {each.rank: each.pieces for each in book.held()}
        try:
            if kind == "prepare":
                if prepare(book, piece(number, of=of, rank=rank, pieces=pieces))[0]:
                    model.held.setdefault(rank, set()).add(number)
                    model.totals |= {} if pieces is None else {rank: pieces}
            elif kind == "abort":
                book.check_abort(of)
                dropped = book.abort(of)
                assert len(dropped) == (ahead == 1) * sum(map(len, model.held.values()))
                if ahead == 1:
                    model = Model(model.committed)
            else:
                was_whole = model.is_whole()
                done = commit(book, of, None if kind == "commit_all" else named)
                if done is not None:
                    assert was_whole or kind == "commit"
                    in_order = [
                        f"{rank}.{each}"
                        for rank, own in sorted(model.held.items())
                        for each in sorted(own)
                    ]
                    assert done == in_order
                    model = Model(model.committed + 1)
        except ContractError:
            assert (book.committed, book.held()) == before
        assert book.committed == model.committed
        assert {each.rank: each.pieces for each in book.held()} == {
            rank: len(own) for rank, own in model.held.items()
        }
        assert (book.state == "prepared") == model.is_whole()
