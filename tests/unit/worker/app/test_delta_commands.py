"""``paramfleet delta`` lists, checks and tidies the stream of a folder."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, StreamTable, TableChange
from paramfleet_shared.deltas.stored.head import change_file
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.testing.clock import FakeClock
from paramfleet_worker.app.commands.deltas import delta

IDS = np.arange(10)


@pytest.fixture(params=["disk", "address"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a folder with bases 0, 1 and 2, and changes 1 to 4."""
    name = str(tmp_path) if request.param == "disk" else f"memory://cli{tmp_path}"
    writer = StreamWriter(place_of(name), clock=FakeClock(), keep_bases=9)
    writer.begin([StreamTable(name="words", dim=2)], [], {}, moment=0.0)
    for number in range(1, 5):
        rows = np.full((10, 2), number, np.float32)
        table = TableChange(IDS * number, rows, np.array([-1]))
        writer.publish(Change(moment=float(number), tables={"words": table}, dense={}))
        if number < 3:
            writer.compact()
    return name


def asked(*words: str) -> Result:
    return CliRunner().invoke(delta, words)


def answer(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(*words, "--json").output)
    return found


def test_bases_and_changes_are_listed_by_number(folder: str) -> None:
    text, found = asked("list", folder), answer("list", folder)

    assert text.exit_code == 0
    assert "changes up to 4, all until 1970-01-01T00:00:04.000" in text.output
    parts = [(each["kind"], each["number"]) for each in found["parts"]]
    assert parts == [
        ("base", 0), ("change", 1), ("base", 1), ("change", 2), ("base", 2), ("change", 3),
        ("change", 4),
    ]  # fmt: skip
    assert all(each["bytes"] > 100 and not each["problem"] for each in found["parts"])
    assert (found["last"], found["base"], found["former"]) == (4, 2, [])


def test_a_missing_file_is_listed_and_a_former_stream(folder: str) -> None:
    place = place_of(folder)
    StreamWriter(place, clock=FakeClock()).begin([], [], {}, moment=1.0)
    former = [each.name for each in place.iterdir() if len(each.name) == 32]
    now = StreamReader(place).look().stream
    manifest = place / now / f"base-{0:012d}" / "manifest.json"
    manifest.unlink()

    found = answer("list", folder)

    assert found["former"] == [name for name in former if name != now]
    assert "manifest.json" in found["parts"][0]["problem"]
    assert f"former stream {found['former'][0]}" in asked("list", folder).output


def test_a_stream_that_says_it_is_long_is_listed(tmp_path: Path) -> None:
    StreamWriter(tmp_path, clock=FakeClock()).begin([], [], {}, moment=0.0)
    path = tmp_path / "stream.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"last": 10**12 - 1}))

    found = answer("list", str(tmp_path))

    assert found["parts"][1]["problem"] == f"change 1 is missing, {10**12 - 1} in all"
    assert asked("verify", str(tmp_path)).exit_code == 1


def test_a_whole_stream_is_verified(folder: str) -> None:
    text, found = asked("verify", folder), answer("verify", folder)

    assert text.exit_code == 0
    assert f"{folder}: whole; 3 bases, 4 changes," in text.output
    assert (found["bases"], found["changes"], found["problems"]) == (3, 4, [])


def test_what_is_wrong_is_named_and_the_rest_is_read(folder: str) -> None:
    place = place_of(folder)
    path = change_file(place, StreamReader(place).look().stream, 4)
    path.unlink()

    text, found = asked("verify", folder), answer("verify", folder)

    assert text.exit_code == 1
    assert "change 4 of stream" in text.output
    assert "is missing" in found["problems"][0]
    assert found["bases"] == 3


def test_not_more_breaks_are_printed_than_a_person_reads(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path, clock=FakeClock())
    writer.begin([StreamTable(name="words", dim=2)], [], {}, moment=0.0)
    for number in range(1, 53):
        writer.publish(Change(moment=float(number), tables={}, dense={}))
    stream = StreamReader(tmp_path).look().stream
    for number in range(2, 53, 2):
        change_file(tmp_path, stream, number).unlink()

    text, found = asked("verify", str(tmp_path)), answer("verify", str(tmp_path))

    assert text.exit_code == 1
    lines = text.output.splitlines()
    assert lines[0].startswith(f"{tmp_path}: 26 problems; 1 base, ")
    assert len(lines) == 22
    assert lines[-1] == "  and 6 more: --json names up to 1,000"
    assert (len(found["problems"]), found["num_problems"]) == (26, 26)


def test_a_base_that_tells_something_else_is_found(tmp_path: Path) -> None:
    """Changes and bases are whole, and a base isn't what the changes give."""
    writer = StreamWriter(tmp_path, clock=FakeClock())
    table = StreamTable(name="words", dim=2)
    rows = np.ones((10, 2), np.float32)
    writer.begin([table], [("words", IDS, rows)], {"w": rows}, moment=0.0)
    change = TableChange(IDS[:1], rows[:1] * 2, IDS[:0])
    writer.publish(Change(moment=1.0, tables={"words": change}, dense={}))
    writer.compact()
    other = StreamWriter(tmp_path / "other", clock=FakeClock())
    head = StreamReader(tmp_path).look()
    for altered in (
        {"words": (IDS, rows)},
        {"words": (IDS + 1, rows)},
        {"words": (np.arange(11), np.ones((11, 2), np.float32))},
    ):
        pieces = [(name, *both) for name, both in altered.items()]
        other.begin([table], pieces, {"w": rows}, moment=0.0)
        set_base(tmp_path, StreamReader(tmp_path / "other").look().stream)

        found = answer("verify", str(tmp_path))

        assert len(found["problems"]) == 1
        assert f"base 1 of stream {head.stream} isn't base 0" in found["problems"][0]


def set_base(folder: Path, stream: str) -> None:
    """Put base 0 of another stream there as base 1, as its manifest and ``stream.json`` say."""
    path, own = folder / "stream.json", StreamReader(folder).look()
    base = folder / own.stream / f"base-{1:012d}"
    shutil.rmtree(base)
    shutil.copytree(folder / "other" / stream / f"base-{0:012d}", base)
    manifest = json.loads((base / "manifest.json").read_text())
    manifest |= {"stream": own.stream, "number": 1, "digest": own.digest}
    (base / "manifest.json").write_text(json.dumps(manifest))
    sha256 = hashlib.sha256((base / "manifest.json").read_bytes()).hexdigest()
    head = json.loads(path.read_text())
    head["bases"][1]["sha256"] = sha256
    path.write_text(json.dumps(head))


def test_a_base_is_made_of_the_changes(folder: str) -> None:
    assert answer("compact", folder)["base"] == 4
    assert StreamReader(place_of(folder)).bases() == [0, 1, 2, 4]
    assert "has a base already" in asked("compact", folder, "--keep", "1").output
    assert asked("verify", folder).exit_code == 0


def test_compacting_may_keep_few_bases(folder: str) -> None:
    assert "base 4" in asked("compact", folder, "--keep=2").output

    assert StreamReader(place_of(folder)).bases() == [2, 4]
    assert asked("verify", folder).exit_code == 0


def test_old_bases_are_pruned(folder: str) -> None:
    assert answer("prune", folder, "--keep", "2")["bases"] == [1, 2]
    assert "1 base kept: number 2" in asked("prune", folder, "--keep", "1").output

    assert answer("list", folder)["parts"][0]["number"] == 2
    assert asked("verify", folder).exit_code == 0
    assert asked("prune", folder).exit_code == 2
    assert asked("prune", folder, "--keep", "0").exit_code == 2


@pytest.mark.parametrize("words", [("list",), ("verify",), ("compact",), ("prune", "--keep=1")])
def test_a_folder_without_a_stream_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    found = asked(*words, str(tmp_path))

    assert found.exit_code == 2
    assert "there is no stream.json" in found.output
