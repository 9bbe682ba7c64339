"""What waits for a reader keeps its order and its bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_worker.core.showing.backlog import Backlog

MOST = 100
"""Bytes that may wait for an output."""


def all_of(backlog: Backlog, most_bytes: int = 10) -> list[tuple[object, bytes]]:
    taken = []
    while backlog:
        taken.append(backlog.take(most_bytes))
    return taken


@given(
    given=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=30))),
    most_bytes=st.integers(1, 40),
)
def test_every_output_gets_its_bytes_in_their_order_and_no_part_is_too_large(
    given: list[tuple[int, bytes]], most_bytes: int
) -> None:
    backlog = Backlog()
    for to, data in given:
        assert backlog.add(to, data, most_bytes=10_000)

    taken = all_of(backlog, most_bytes)

    assert all(0 < len(data) <= most_bytes for _, data in taken)
    for one in (1, 2):
        whole = b"".join(data for to, data in given if to == one)
        assert b"".join(data for to, data in taken if to == one) == whole


def test_two_outputs_of_one_reader_keep_the_order_between_them() -> None:
    backlog = Backlog()
    for to, data in ((1, b"a"), (2, b"b"), (2, b"c"), (1, b"d")):
        backlog.add(to, data, most_bytes=MOST)

    assert all_of(backlog) == [(1, b"a"), (2, b"bc"), (1, b"d")]


def test_pieces_are_taken_together_only_as_whole_ones() -> None:
    backlog = Backlog()
    for data in (b"1234\n", b"123\n", b"12\n"):
        backlog.add(1, data, most_bytes=MOST)

    assert all_of(backlog) == [(1, b"1234\n123\n"), (1, b"12\n")]


def test_what_is_missing_is_missing_in_one_place_and_told_once() -> None:
    backlog = Backlog()
    lines = [f"{number:8d}\n".encode() for number in range(30)]

    taken = [backlog.add(1, line, most_bytes=MOST) for line in lines[:20]]

    assert taken == [True] * 11 + [False] * 9
    assert backlog.lost_lines(1, most_bytes=MOST) == 0, "nothing reads that"
    backlog.take(MOST // 4)
    assert not backlog.add(1, lines[20], most_bytes=MOST), "before half of it is taken"
    assert backlog.lost_lines(1, most_bytes=MOST) == 0
    backlog.take(MOST // 2)
    assert backlog.lost_lines(1, most_bytes=MOST) == 10
    assert backlog.lost_lines(1, most_bytes=MOST) == 0
    assert backlog.add(1, lines[21], most_bytes=MOST)
    assert b"".join(data for _, data in all_of(backlog)).endswith(lines[10] + lines[21])


def test_one_output_that_is_full_keeps_no_other_from_taking_more() -> None:
    backlog = Backlog()

    assert not backlog.add(1, b"\n" * (MOST + 1), most_bytes=MOST)

    assert backlog.add(2, b"x", most_bytes=MOST)
    assert backlog.lost_lines(2, most_bytes=MOST) == 0
    assert backlog.lost_lines(1, most_bytes=MOST) == MOST + 1


def test_a_draft_that_waits_is_replaced_by_the_next() -> None:
    backlog = Backlog()
    for number in range(1000):
        assert backlog.add(1, b"\rstep %d" % number, most_bytes=MOST, is_draft=True)

    assert all_of(backlog, MOST) == [(1, b"\rstep 999")]


def test_a_draft_is_kept_once_something_stands_behind_it() -> None:
    backlog = Backlog()
    for data, is_draft in ((b"1", True), (b"line\n", False), (b"2", True), (b"3", True)):
        backlog.add(1, data, most_bytes=MOST, is_draft=is_draft)

    assert all_of(backlog) == [(1, b"1line\n3")]


def test_who_drops_what_waits_is_told_how_many_lines_it_was() -> None:
    backlog = Backlog()
    backlog.add(1, b"one\ntwo\n", most_bytes=9)
    backlog.add(2, b"others\n", most_bytes=9)
    backlog.add(1, b"three\n", most_bytes=9)

    assert backlog.drop(1) == 3
    assert backlog.drop(1) == 0
    assert all_of(backlog) == [(2, b"others\n")]


def test_nothing_is_taken_where_nothing_waits() -> None:
    with pytest.raises(IndexError):
        Backlog().take(1)
