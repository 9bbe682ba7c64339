"""Each value of a table is there once, and each shard is one server's."""

import numpy as np
import pytest

from paramfleet_worker.core.checkpoints.integrity import (
    Doubled,
    doubled_ids,
    range_problems,
    server_of,
    shards_of_several,
)


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("ads-0123.server0.00000.safetensors", 0),
        ("ads-0123.server12.safetensors", 12),
        ("table000.safetensors", None),
        ("ads.server.safetensors", None),
        (f"ads.server{'9' * 50}.safetensors", None),
    ],
)
def test_a_file_name_says_which_server_wrote_it(name: str, server: int | None) -> None:
    assert server_of(name) == server


def test_ids_that_are_there_twice_are_found_with_their_files() -> None:
    ids = np.array([5, -1, 7, 5, 7, 3], np.int64)
    files = np.array([0, 0, 1, 1, 1, 2], np.int64)

    assert doubled_ids(ids, files) == [Doubled(5, 1, 0), Doubled(7, 1, 1)]


def test_only_some_of_many_doubled_ids_are_returned() -> None:
    ids = np.zeros(1000, np.int64)

    assert len(doubled_ids(ids, ids, most=3)) == 3
    assert doubled_ids(ids[:1], ids[:1]) == []


def test_a_shard_has_one_server() -> None:
    has = np.array([[True, False, True], [True, False, False], [False, True, True]])

    assert shards_of_several(has, [0, 0, 1]) == {2: [0, 1]}
    assert shards_of_several(has, [0, 1, 2]) == {0: [0, 1], 2: [0, 2]}
    assert shards_of_several(has, [None, None, None]) == {}
    assert shards_of_several(np.zeros((0, 3), np.bool_), []) == {}


def test_ranges_that_cover_a_table_are_no_problem() -> None:
    assert range_problems([(4, 9, "b"), (0, 4, "a")], 9) == []
    assert range_problems([], 0) == []


def test_values_in_no_file_or_in_two_are_named() -> None:
    assert range_problems([(2, 4, "a"), (3, 6, "b")], 8) == [
        ("", "no file has the values from 0 to 2"),
        ("b", "another file has the values from 3, too"),
        ("", "no file has the values from 6 to 8"),
    ]
