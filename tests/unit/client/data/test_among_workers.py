"""Positions in files, where other workers read them from now on."""

from typing import Any

import pytest

from paramfleet.data.progress import OtherDataError, Progress, among_workers


def state(files: list[str], lines: dict[int, int], epoch: int = 0) -> dict[str, Any]:
    progress = Progress()
    progress.epoch, progress.lines = epoch, lines
    return progress.to_state(files)


def test_each_file_goes_on_where_its_reader_was() -> None:
    ada, bob = state(["a", "b"], {0: -1, 1: 7}), state(["c", "d"], {0: 3})

    found = [among_workers([ada, bob], files) for files in (["a", "c"], ["b"], ["d", "new"])]

    assert [each["lines"] for each in found] == [{"0": -1, "1": 3}, {"0": 7}, {}]
    assert Progress.from_state(found[1], ["b"]).lines == {0: 7}


def test_files_of_a_reader_in_a_later_epoch_are_finished_in_this_one() -> None:
    found = among_workers([state(["a"], {0: 5}, 1), state(["b"], {}, 2)], ["a", "b"])

    assert (found["epoch"], found["lines"]) == (1, {"0": 5, "1": -1})


def test_a_file_of_several_readers_goes_on_where_the_first_of_them_was() -> None:
    files = ["a", "b"]
    found = among_workers([state(files, {0: -1, 1: -1}), state(files, {0: 4, 1: -1})], files)

    assert found["lines"] == {"0": 4, "1": -1}


def test_positions_of_another_kind_are_refused() -> None:
    with pytest.raises(OtherDataError, match="kind"):
        among_workers([state(["a"], {}), {"kind": "memory"}], ["a"])
