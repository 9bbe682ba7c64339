"""A chain that is broken is refused by name, and nothing behind the break is given."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.shared.deltas.streams import (
    Model,
    begin,
    random_change,
    read_from,
    writer_at,
)

from paramfleet_shared.deltas.errors import (
    BaseDamagedError,
    ChangeDamagedError,
    ChangeForkedError,
    ChangeGapError,
    ChangeOrderError,
    ChangeRepeatedError,
    ChangesUnavailableError,
    OtherStreamError,
    StreamError,
    StreamUnreadableError,
)
from paramfleet_shared.deltas.inspecting.verifying import (
    VerifiedStream,
    verify_changes,
    verify_stream,
)
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.errors import IntegrityError

LAST = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a stream with five changes."""
    folder = tmp_path / "stream"
    fill(folder)
    return folder


def fill(folder: Path) -> None:
    writer, numbers = writer_at(folder), np.random.default_rng(7)
    begin(writer, Model())
    for at in range(1, LAST + 1):
        writer.publish(random_change(numbers, float(at), span=6))


def file_of(folder: Path, number: int) -> Path:
    own = folder / StreamReader(folder).look().stream
    return own / f"delta-{number:012d}.safetensors"


def given(folder: Path) -> tuple[list[int], Exception | None]:
    """Return the changes that are given, and the error behind them."""
    numbers: list[int] = []
    try:
        numbers.extend(each.number for each in StreamReader(folder).changes(0, LAST))
    except IntegrityError as error:
        return numbers, error
    return numbers, None


def swapped(folder: Path) -> None:
    one, other = file_of(folder, 3), file_of(folder, 4)
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)


def forked(folder: Path) -> None:
    """Put change 3 of the same stream there that follows another change 2."""
    path = file_of(folder, 3)
    content = path.read_bytes()
    previous = content.index(b'"previous":"') + len('"previous":"')
    altered = b"0" if content[previous : previous + 1] != b"0" else b"1"
    path.write_bytes(content[:previous] + altered + content[previous + 1 :])


def of_another(folder: Path) -> None:
    fill(folder.parent / "other")
    shutil.copy(file_of(folder.parent / "other", 3), file_of(folder, 3))


def linked(folder: Path) -> None:
    path = file_of(folder, 3)
    path.rename(folder / "aside")
    path.symlink_to(folder / "aside")


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (lambda folder: file_of(folder, 3).unlink(), ChangeGapError),
        (
            lambda folder: shutil.copy(file_of(folder, 2), file_of(folder, 3)),
            ChangeRepeatedError,
        ),
        (swapped, ChangeOrderError),
        (forked, ChangeForkedError),
        (of_another, OtherStreamError),
        (lambda folder: file_of(folder, 3).write_bytes(b""), ChangeDamagedError),
        (linked, ChangeDamagedError),
    ],
    ids=["gap", "duplicate", "reorder", "fork", "stream", "empty", "link"],
)
def test_a_broken_chain_is_refused_by_name(
    broken: Callable[[Path], object], kind: type[Exception], folder: Path
) -> None:
    broken(folder)

    numbers, error = given(folder)

    assert type(error) is kind
    # The file behind names what change 2 must be: where it can't be read, 2 isn't proven.
    assert numbers in ([1, 2], [1])
    assert StreamReader(folder).look().stream in str(error)
    assert any(type(error).__name__ and str(error) == said for said in problems(folder))


def problems(folder: Path) -> list[str]:
    return verify_stream(folder).problems


def test_every_break_of_a_stream_is_found_and_what_is_between_is_proven(
    tmp_path: Path,
) -> None:
    writer, numbers = writer_at(tmp_path, keep_bases=9), np.random.default_rng(7)
    begin(writer, Model())
    for at in range(1, 16):
        writer.publish(random_change(numbers, float(at), span=6))
        if at in {5, 10}:
            writer.compact()
    base = tmp_path / StreamReader(tmp_path).look().stream / "base-000000000005"
    next(each for each in base.iterdir() if each.name != "manifest.json").write_bytes(b"odd")
    file_of(tmp_path, 2).write_bytes(file_of(tmp_path, 2).read_bytes()[:-1])
    for number in (7, 8, 9):
        file_of(tmp_path, number).unlink()
    shutil.copy(file_of(tmp_path, 11), file_of(tmp_path, 12))
    file_of(tmp_path, 15).unlink()

    found = verify_stream(tmp_path)

    said = "\n".join(found.problems)
    assert len(found.problems) == 6, said
    for each in (
         ", base 5 of stream", f"{file_of(tmp_path, 2)}, change 2",
        f"{file_of(tmp_path, 7)}: change 7", "changes 8 to 9 of stream",
        f"{file_of(tmp_path, 12)} has the earlier change 11",
        f"{file_of(tmp_path, 15)}: change 15",
    ):  # fmt: skip
        assert said.count(each) == 1, (each, said)
    # What isn't broken, and whose SHA-256 the next one tells.
    assert (found.bases, found.changes) == (2, len([1, 3, 4, 5, 10, 13]))


def test_changes_are_proven_where_no_base_can_be_opened(folder: Path) -> None:
    base = folder / StreamReader(folder).look().stream / "base-000000000000"
    next(each for each in base.iterdir() if each.name != "manifest.json").write_bytes(b"odd")
    file_of(folder, 3).write_bytes(b"odd")

    found = verify_stream(folder)

    assert (found.bases, found.changes, len(found.problems)) == (0, 3, 2)


def test_a_manifest_that_all_files_must_fit_is_told_once(folder: Path) -> None:
    base = folder / StreamReader(folder).look().stream / "base-000000000000"
    (base / "manifest.json").write_text("{}")

    found = verify_stream(folder)

    assert len(found.problems) == 1
    assert (found.bases, found.changes) == (0, 0)


def test_a_stream_that_is_replaced_meanwhile_is_told(folder: Path) -> None:
    """The former stream's changes go, and those of the new one aren't taken for them."""
    before = StreamReader(folder).look()
    found = VerifiedStream(before)
    fill(folder)
    fill(folder)

    verify_changes(folder, found, opened=[])

    assert len(found.problems) == 1
    assert f"stream {before.stream} was followed" in found.problems[0]


def test_the_newest_change_may_be_the_missing_one(folder: Path) -> None:
    file_of(folder, LAST).unlink()

    numbers, error = given(folder)

    assert isinstance(error, ChangeGapError)
    assert error.facts["number"] == LAST
    assert numbers == [1, 2, 3]


def places(content: bytes) -> list[int]:
    """Return places in each region of a file: length, header, metadata, every tensor."""
    header = 8 + int.from_bytes(content[:8], "little")
    named = [content.index(word) for word in (b"__metadata__", b'"number"', b'"stream"')]
    first = [0, 1, 7, 8, 9, header - 1, header, header + 1]
    spread = range(8, len(content), max(1, len(content) // 60))
    return sorted({*first, *named, *spread, len(content) - 1})


@pytest.mark.parametrize("number", [3, LAST])
def test_a_file_torn_anywhere_is_refused(number: int, folder: Path) -> None:
    path = file_of(folder, number)
    content = path.read_bytes()

    for length in places(content):
        path.write_bytes(content[:length])
        numbers, error = given(folder)
        assert isinstance(error, ChangeDamagedError), length
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) < number

    path.write_bytes(content)
    assert given(folder) == (list(range(1, LAST + 1)), None)


@pytest.mark.parametrize("number", [1, 3, LAST])
def test_an_altered_byte_anywhere_is_refused(number: int, folder: Path) -> None:
    path = file_of(folder, number)
    content = path.read_bytes()

    for place in places(content):
        altered = bytearray(content)
        altered[place] ^= 0x01
        path.write_bytes(altered)
        numbers, error = given(folder)
        assert isinstance(error, IntegrityError), place
        assert len(numbers) < number

    for more in (b"\0", b"more"):
        path.write_bytes(content + more)
        assert isinstance(given(folder)[1], ChangeDamagedError)


def test_an_altered_file_of_a_base_is_refused(folder: Path) -> None:
    own = folder / StreamReader(folder).look().stream / f"base-{0:012d}"

    for path in sorted(own.iterdir()):
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            altered = bytearray(content)
            altered[place] ^= 0x01
            path.write_bytes(altered)
            with pytest.raises(BaseDamagedError, match="SHA-256"):
                StreamReader(folder).base()
            assert problems(folder)
        path.write_bytes(content[:-1])
        with pytest.raises(BaseDamagedError):
            StreamReader(folder).base()
        path.unlink()
        with pytest.raises(BaseDamagedError, match="is missing"):
            StreamReader(folder).base()
        path.symlink_to("/etc/hostname")
        with pytest.raises(BaseDamagedError, match="link"):
            StreamReader(folder).base()
        path.unlink()
        path.write_bytes(content)

    assert not problems(folder)


def test_a_change_that_is_not_published_is_not_given(folder: Path) -> None:
    with pytest.raises(ChangesUnavailableError, match="the newest that is published is 5"):
        list(StreamReader(folder).changes(0, LAST + 1))
    with pytest.raises(ChangesUnavailableError, match="no base is kept"):
        StreamReader(folder).base(3)


def test_stream_json_must_be_one(folder: Path) -> None:
    path = folder / "stream.json"
    content = path.read_text()
    number = f'"last": {LAST}'

    for wrong, said in (
        ("", "can't be read"),
        ("[]", "must be paramfleet-stream"),
        ("[" * 200, "can't be read"),
        (content.replace("paramfleet-stream", "other"), "must be paramfleet-stream"),
        (content.replace('"version": 1', '"version": 2'), "version 1"),
        (content.replace(number, f'"last": {10**40}'), "no whole number"),
        (content.replace(number, '"last": -1'), "no whole number"),
        (content.replace('"stream": "', '"stream": "../'), "32 hexadecimal"),
        (content.replace('"base": 0', '"base": 1'), "newest of bases"),
        (content.replace('"digest": "', '"digest": "x'), "64 hexadecimal"),
        (content.replace('"moment": 5.0', '"moment": 1e400'), "finite"),
        (content.replace('"moment": 5.0', '"moment": true'), "moment"),
        (content.replace('"bases"', '"basis"'), "bases"),
        (content.replace('"number": 0', '"number": 9'), "no whole number"),
    ):
        path.write_text(wrong)
        with pytest.raises(StreamError, match=said):
            StreamReader(folder).look()

    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(StreamError, match="link"):
        StreamReader(folder).look()


def test_what_the_system_refuses_may_be_tried_again(folder: Path) -> None:
    reader, head = StreamReader(folder), StreamReader(folder).look()
    own = folder / head.stream
    own.rename(folder / "aside")
    own.write_text("no folder")

    for act in (reader.base, lambda: list(reader.changes(0, LAST))):
        with pytest.raises(StreamUnreadableError, match="Not a directory"):
            act()
    with pytest.raises(StreamUnreadableError):
        StreamReader(own).look()

    own.unlink()
    (folder / "aside").rename(own)
    reader.base()
    path = file_of(folder, LAST)
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path)  # a loop
    with pytest.raises(ChangeDamagedError, match="link"):
        list(reader.changes(0, LAST))
    path.unlink()
    path.write_bytes(content)
    assert len(list(reader.changes(0, LAST))) == LAST


def test_what_a_writer_did_not_publish_is_not_read(folder: Path) -> None:
    before = read_from(folder)
    shutil.copy(file_of(folder, 1), file_of(folder, LAST + 1))

    assert read_from(folder) == before
