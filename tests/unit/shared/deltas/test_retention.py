"""What is removed, when, and what readers see of it that are in the middle."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.shared.deltas.streams import (
    Crash,
    FailingDisk,
    Model,
    begin,
    model_of,
    random_change,
    read_from,
    writer_at,
)

from paramfleet_shared.deltas.compaction import prune_folder
from paramfleet_shared.deltas.errors import ChangesUnavailableError, StreamReplacedError
from paramfleet_shared.deltas.inspecting.verifying import verify_stream
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.retention import kept_bases
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.testing.clock import FakeClock


@pytest.fixture(params=["disk", "address"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path if request.param == "disk" else place_of(f"memory://kept{tmp_path}")


def publish(writer: StreamWriter, numbers: list[int], model: Model) -> None:
    for number in numbers:
        change = random_change(np.random.default_rng(number), float(number))
        assert writer.publish(change) == number
        model.apply(change)


def names(folder: Path) -> list[str]:
    own = folder / StreamReader(folder).look().stream
    return sorted(each.name[:6] + each.name.split(".")[0][-2:] for each in own.iterdir())


def test_the_newest_bases_are_kept_with_the_changes_behind_them(folder: Path) -> None:
    writer, model = writer_at(folder, keep_bases=2), Model()
    begin(writer, model)
    publish(writer, [1, 2], model)
    assert writer.compact() == 2
    assert names(folder) == ["base-000", "base-002", "delta-01", "delta-02"]
    publish(writer, [3, 4], model)

    assert writer.compact() == 4
    assert writer.compact() is None

    assert StreamReader(folder).bases() == [2, 4]
    assert names(folder) == ["base-002", "base-004", "delta-03", "delta-04"]
    assert read_from(folder, 2) == read_from(folder) == model
    assert not verify_stream(folder).problems


def test_a_reader_that_is_too_far_behind_is_told_to_begin_anew(folder: Path) -> None:
    writer, model = writer_at(folder, keep_bases=1), Model()
    begin(writer, model)
    reader = StreamReader(folder)
    base = reader.base()
    publish(writer, [1, 2, 3], model)
    changes = reader.changes(0, 3)
    seen = model_of(base)
    seen.apply(next(changes).change)

    writer.compact()

    with pytest.raises(ChangesUnavailableError, match="begin at base 3"):
        next(changes)
    with pytest.raises(ChangesUnavailableError, match="begin at base 3"):
        list(reader.changes(1, 3))
    with pytest.raises(ChangesUnavailableError, match="no base is kept"):
        reader.base(0)
    assert model_of(reader.base()) == model
    publish(writer, [4], model)
    assert [each.number for each in reader.changes(3, 4)] == [4]


def test_a_reader_in_the_middle_of_changes_that_are_kept_goes_on(folder: Path) -> None:
    writer, model = writer_at(folder), Model()
    begin(writer, model)
    publish(writer, [1, 2, 3], model)
    reader = StreamReader(folder)
    seen = model_of(reader.base())
    changes = reader.changes(0, 3)
    seen.apply(next(changes).change)

    writer.compact()  # two bases are kept: that of the reader, too
    for each in changes:
        seen.apply(each.change)

    assert seen == model


def test_the_stream_before_is_kept_until_the_one_behind_has_a_base(folder: Path) -> None:
    writer, streams = writer_at(folder), []
    reader = StreamReader(folder)

    for number in range(4):
        begin(writer, Model())
        publish(writer, [1], Model())
        streams.append(reader.look().stream)
        kept = {each.name for each in folder.iterdir() if len(each.name) == 32}
        assert kept == set(streams[-2:])
        if number < 3:
            reader.base()

    with pytest.raises(StreamReplacedError, match=streams[3]):
        list(reader.changes(0, 1))


def test_a_base_that_was_opened_is_read_after_it_was_removed(tmp_path: Path) -> None:
    writer, model = writer_at(tmp_path, keep_bases=1), Model()
    publish_first = Model()
    begin(writer, publish_first)
    publish(writer, [1], model)
    writer.compact()
    opened = StreamReader(tmp_path).base()
    before = model_of(opened)
    publish(writer, [2], model)

    writer.compact()

    assert StreamReader(tmp_path).bases() == [2]
    assert model_of(opened) == before


def test_what_others_put_into_the_folder_stays(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / ("f" * 32)).symlink_to(tmp_path / "notes")
    (tmp_path / "notes" / f"delta-{1:012d}.safetensors").write_text("mine")
    begin(writer, Model())
    first = tmp_path / StreamReader(tmp_path).look().stream
    (first / "mine.txt").write_text("mine")

    for _ in range(3):
        begin(writer, Model())

    assert [each.name for each in first.iterdir()] == ["mine.txt"]
    assert (tmp_path / "notes" / f"delta-{1:012d}.safetensors").read_text() == "mine"


def test_a_base_that_could_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    disk = FailingDisk(OSError)
    writer, model = writer_at(tmp_path, disk), Model()
    begin(writer, model)
    publish(writer, [1], model)
    before = names(tmp_path)

    disk.fail_at(2, "after")
    with pytest.raises(OSError):  # noqa: PT011 - whatever the system refuses
        writer.compact()

    assert names(tmp_path) == before
    disk.fail_at(None)
    assert writer.compact() == 1


def test_what_was_left_of_a_base_goes_with_the_next(tmp_path: Path) -> None:
    disk = FailingDisk()
    writer, model = writer_at(tmp_path, disk, keep_bases=9), Model()
    begin(writer, model)
    publish(writer, [1], model)
    disk.fail_at(2, "after")
    with pytest.raises(Crash):
        writer.compact()
    assert "base-001" in names(tmp_path)

    disk.fail_at(None)
    publish(writer, [2], model)
    assert writer.compact() == 2

    assert names(tmp_path) == ["base-000", "base-002", "delta-01", "delta-02"]
    assert read_from(tmp_path) == model


def test_pruning_keeps_so_many_bases(tmp_path: Path) -> None:
    writer, model = writer_at(tmp_path, keep_bases=5), Model()
    begin(writer, model)
    for number in range(1, 5):
        publish(writer, [number], model)
        writer.compact()

    head = prune_folder(tmp_path, FakeClock(), keep=2)

    assert list(head.bases) == [3, 4] == StreamReader(tmp_path).bases()
    assert names(tmp_path) == ["base-003", "base-004", "delta-04"]
    assert read_from(tmp_path, 3) == model
    assert kept_bases({1: "a", 5: "b", 7: "c"}, 2) == {5: "b", 7: "c"}
