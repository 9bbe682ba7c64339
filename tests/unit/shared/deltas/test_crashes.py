"""A writer may end at each of its steps: readers see what was before, or what was to be."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.shared.deltas.streams import (
    Crash,
    FailingDisk,
    Model,
    begin,
    leftovers,
    random_change,
    read_from,
    writer_at,
)

from paramfleet_shared.deltas.inspecting.verifying import verify_stream
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.files.addresses import place_of

WHERE = ("before", "middle", "after")


@pytest.fixture(autouse=True)
def _no_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave syncs out, which make no difference to what other processes see."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def change(number: int) -> Change:
    return random_change(np.random.default_rng(number), float(number), span=8)


def after(number: int) -> Model:
    """Return the state behind a change."""
    model = Model()
    for each in range(1, number + 1):
        model.apply(change(each))
    return model


def grown(folder: Path, disk: FailingDisk) -> StreamWriter:
    """Return a writer that has published three changes, in its second stream of three bases."""
    writer = writer_at(folder, disk)
    begin(writer, after(9))
    begin(writer, Model())
    for number in range(1, 4):
        writer.publish(change(number))
        if number < 3:
            writer.compact()
    return writer


def publish(writer: StreamWriter) -> None:
    writer.publish(change(4))


def begin_again(writer: StreamWriter) -> None:
    begin(writer, after(9), moment=9.0)


DEEDS: dict[str, tuple[Callable[[StreamWriter], object], int]] = {
    "publish": (publish, 4),
    "compact": (lambda writer: writer.compact(), 3),
    "touch": (lambda writer: writer.touch(20.0), 3),
    "begin": (begin_again, 9),
}
"""What is done behind three changes, and which state is to follow."""


def steps_of(name: str, tmp_path: Path) -> int:
    """Return how many calls of the disk a deed has."""
    disk = FailingDisk()
    writer = grown(tmp_path / "counted", disk)
    disk.fail_at(None)
    DEEDS[name][0](writer)
    assert read_from(tmp_path / "counted") == after(DEEDS[name][1])
    return disk.count


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", DEEDS)
def test_a_crash_leaves_a_whole_state(name: str, where: str, tmp_path: Path) -> None:
    deed, number = DEEDS[name]
    steps = steps_of(name, tmp_path)
    assert steps >= 1

    for at in range(steps):
        folder, disk = tmp_path / f"{at}", FailingDisk()
        writer = grown(folder, disk)
        disk.fail_at(at, where)
        with pytest.raises(Crash):
            deed(writer)

        assert read_from(folder) in (after(3), after(number)), at
        assert not verify_stream(folder).problems

        following = writer_at(folder)
        for _ in range(2):  # the next life of the writer, and the one behind it
            begin(following, after(1))
        assert read_from(folder) == after(1)
        assert not leftovers(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEDS)
def test_a_writer_goes_on_after_a_refusal(name: str, tmp_path: Path) -> None:
    deed, number = DEEDS[name]

    for at in range(steps_of(name, tmp_path)):
        folder, disk = tmp_path / f"{at}", FailingDisk(OSError)
        writer = grown(folder, disk)
        disk.fail_at(at, WHERE[at % 3])
        with pytest.raises(OSError):  # noqa: PT011 - whatever the system refuses
            deed(writer)

        assert read_from(folder) in (after(3), after(number)), at
        disk.fail_at(None)
        deed(writer)  # once more: rows are whole, so that it does no harm to do it twice
        assert read_from(folder) == after(number)
        writer.publish(change(number + 1))
        assert read_from(folder) == after(number + 1)
        assert not verify_stream(folder).problems


def test_the_disk_below_does_what_a_disk_does(tmp_path: Path) -> None:
    for folder in (tmp_path / "real", place_of(f"memory://{tmp_path}/real")):
        disk = FailingDisk()
        writer = grown(folder, disk)
        begin_again(writer)

        assert read_from(folder) == after(9)
        assert disk.count > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEDS)
def test_the_same_holds_at_an_address(name: str, tmp_path: Path) -> None:
    deed, number = DEEDS[name]
    for at in range(steps_of(name, tmp_path)):
        folder, disk = place_of(f"memory://{tmp_path}/{at}"), FailingDisk()
        writer = grown(folder, disk)
        disk.fail_at(at, "after")
        with pytest.raises(Crash):
            deed(writer)

        assert read_from(folder) in (after(3), after(number)), at
        assert not verify_stream(folder).problems


def test_a_reader_keeps_what_it_has_opened(tmp_path: Path) -> None:
    writer = grown(tmp_path, FailingDisk())
    reader = StreamReader(tmp_path)
    base = reader.base()
    before = {name: (t.ids.copy(), t.rows.copy()) for name, t in base.tables.items()}

    for _ in range(3):
        begin_again(writer)

    for name, (ids, rows) in before.items():
        assert np.array_equal(base.tables[name].ids, ids)
        assert np.array_equal(base.tables[name].rows, rows)
