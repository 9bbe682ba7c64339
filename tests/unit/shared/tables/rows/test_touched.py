"""Ids that a reader of a shard has yet to read."""

import numpy as np
import pytest

from paramfleet_shared.tables.rows import touched
from paramfleet_shared.tables.rows.touched import TouchedIds
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec


def ids_of(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


def taken(reader: TouchedIds, most: int = 1 << 30) -> list[int]:
    reader.settle()
    return sorted(reader.take(most).tolist())


def test_each_id_comes_once_and_what_was_taken_is_kept_no_longer() -> None:
    reader = TouchedIds()
    reader.note(ids_of(3, 1, 3))
    reader.note(ids_of())
    reader.note(ids_of(-7, 1))

    assert taken(reader) == [-7, 1, 3]
    assert not len(reader)
    assert taken(reader) == []


def test_what_is_not_taken_stays_and_what_comes_meanwhile_is_for_the_next_time() -> None:
    reader = TouchedIds()
    reader.note(np.arange(10))
    reader.settle()

    first = reader.take(4).tolist()
    reader.note(ids_of(first[0], 50))
    assert reader.num_settled == 6
    second = reader.take(100).tolist()

    assert sorted(first + second) == list(range(10))
    assert reader.take(9).tolist() == []
    assert taken(reader) == sorted([first[0], 50])


def test_what_is_left_is_settled_again_with_what_has_come_each_once() -> None:
    reader = TouchedIds()
    reader.note(np.arange(10))
    reader.settle()
    reader.take(5)
    reader.note(np.arange(8, 12))

    assert len(taken(reader)) == len({*range(5, 12)})


def test_ids_that_are_noted_belong_to_who_noted_them() -> None:
    reader, mine = TouchedIds(), ids_of(1, 2)
    reader.note(mine)
    mine[:] = 9

    assert taken(reader) == [1, 2]


def test_a_silent_reader_keeps_ids_about_twice_at_most() -> None:
    reader = TouchedIds()
    for _ in range(8):
        reader.note(np.arange(touched.MERGE_AT, dtype=np.int64))

    assert len(reader) <= 3 * touched.MERGE_AT
    assert len(taken(reader)) == touched.MERGE_AT


def test_a_shard_notes_all_that_changes_comes_or_goes_and_nothing_that_is_read() -> None:
    spec = TableSpec(name="rows", kind="sparse", dim=2, optimizer=OptimizerSpec(rule="adagrad"))
    shard, reader = SparseShard(spec), TouchedIds()
    shard.create(ids_of(1, 2, 3))
    shard.follow(reader)

    shard.pull(ids_of(1, 50), np.empty((2, 2), np.float32), create=True)
    assert taken(reader) == []
    shard.push(ids_of(1, 4), np.ones((2, 2), np.float32), lr=1.0, step=1, unique=True)
    assert taken(reader) == [1, 4]
    shard.push(ids_of(2, 2), np.ones((2, 2), np.float32), lr=1.0, step=2)
    assert taken(reader) == [2]
    shard.assign(ids_of(8), np.ones((1, 2), np.float32), np.ones((1, 2), np.float32))
    assert taken(reader) == [8]
    shard.remove(ids_of(8, 3))
    assert taken(reader) == [3, 8]

    shard.unfollow(reader)
    shard.unfollow(reader)
    shard.remove(ids_of(1))
    assert not len(reader)


def test_ids_that_there_is_no_memory_for_are_lost_and_no_error() -> None:
    asked: list[int] = []

    def has_memory(num_bytes: int) -> bool:
        asked.append(num_bytes)
        return len(asked) < 3

    reader = TouchedIds(has_memory)
    while not reader.is_lost:
        reader.note(np.arange(touched.MERGE_AT // 2, dtype=np.int64) + reader.num_bytes)

    assert len(asked) == 3
    assert all(each > 8 * touched.MERGE_AT for each in asked), "more than is kept at once"
    assert reader.num_bytes == 0
    reader.note(ids_of(1))
    assert taken(reader) == []
    assert len(asked) == 3


def test_a_lack_of_memory_at_a_merge_loses_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pieces: list[np.ndarray]) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(touched, "_once", refuse)
    one, other = TouchedIds(), TouchedIds()
    one.note(np.arange(touched.MERGE_AT + 1))
    other.note(ids_of(1))

    assert taken(other) == []
    assert (one.is_lost, other.is_lost) == (True, True)


def test_what_is_lost_is_kept_no_longer() -> None:
    reader = TouchedIds()
    reader.note(ids_of(1, 2))
    reader.settle()
    reader.note(ids_of(3))

    reader.lose()

    assert (reader.num_bytes, taken(reader)) == (0, [])
