"""A table leaves a checkpoint as others read it."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from paramfleet_shared.checkpoint.increments import Base, Increment
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    CheckpointWriteError,
    FilePart,
    Manifest,
    ManifestError,
    SavedTable,
    read_manifest,
    write_manifest,
    write_part,
    write_removed,
)
from paramfleet_shared.checkpoint.saved_rows import NoSuchTableError
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.export import rows
from paramfleet_worker.app.export.paddle import ShardKeys
from paramfleet_worker.app.export.table import (
    ExportFormatError,
    UnknownSuffixError,
    export_table,
)
from paramfleet_worker.app.export.words import WordsError
from paramfleet_worker.config import ExportFormat

IDS = np.array([4, 1, 3], np.int64)
ROWS = np.array([[0.1, 1e-30], [-2.5, 3.0], [np.pi, 1 / 3]], np.float32)
ORDER = [1, 2, 0]


Part = tuple[NDArray[np.int64], NDArray[np.float32]]


def saved(
    folder: Path,
    parts: Sequence[Part],
    *,
    base: Path | None = None,
    removed: Sequence[int] = (),
) -> Path:
    """Write a checkpoint, or an increment of another one: a file for each part."""
    dim = parts[0][1].shape[1]
    spec = TableSpec(name="words", kind="sparse", dim=dim, optimizer=OptimizerSpec(rule="sgd"))
    files = tuple(
        write_part(
            folder,
            f"part{number}.safetensors",
            spec,
            FilePart(ids=ids, values=values, states=np.empty((len(ids), 0), np.float32)),
        )
        for number, (ids, values) in enumerate(parts)
    )
    increment = None
    if base is not None:
        gone = write_removed(folder, "gone", "words", np.array(removed, np.int64))
        found = Base(save=read_manifest(base).save, folder=base.name)
        increment = Increment(base=found, removed=(gone,))
    tables = (SavedTable(spec=spec, version=1),)
    write_manifest(folder, Manifest(tables=tables, files=files, increment=increment))
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return saved(tmp_path / "checkpoint", [(IDS[:2], ROWS[:2]), (IDS[2:], ROWS[2:])])


def test_npy_is_rows_and_ids(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "words.npy"

    done = export_table(checkpoint, table="words", format="npy", output=output)

    assert done == (3, (output, output.with_suffix(".ids.npy")))
    assert np.array_equal(np.load(output), ROWS[ORDER])
    assert np.array_equal(np.load(output.with_suffix(".ids.npy")), IDS[ORDER])
    assert len(list(output.parent.iterdir())) == 2


def test_ids_have_the_whole_name_of_their_rows(checkpoint: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "emb.v1", tmp_path / "emb.v2"

    done = [
        export_table(checkpoint, table="words", format="npy", output=each)
        for each in (one, other, one)
    ]

    ids = [tmp_path / "emb.v1.ids.npy", tmp_path / "emb.v2.ids.npy"]
    assert [each.files for each in done] == [(one, ids[0]), (other, ids[1]), (one, ids[0])]
    assert np.array_equal(np.load(ids[0]), IDS[ORDER])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("emb.npy", "emb"),
        ("emb", "emb.npy"),
        ("emb.npy", "emb.ids.npy"),
        ("emb", "emb.ids.npy"),
    ],
)
def test_what_another_export_wrote_is_not_overwritten(
    checkpoint: Path, tmp_path: Path, first: str, second: str
) -> None:
    done = export_table(checkpoint, table="words", format="npy", output=tmp_path / first)
    before = [path.read_bytes() for path in done.files]

    with pytest.raises(CheckpointWriteError, match=r"emb\.ids\.npy.* has the ids of .*emb"):
        export_table(checkpoint, table="words", format="npy", output=tmp_path / second)

    assert [path.read_bytes() for path in done.files] == before
    assert len(list(tmp_path.iterdir())) == 3


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.parametrize("kind", ["npy", "safetensors", "word2vec", "paddle"])
def test_a_table_is_never_in_memory_as_a_whole(
    tmp_path: Path, kind: ExportFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows, dim = 1500, 4096
    ids = np.random.default_rng(0).permutation(num_rows).astype(np.int64) - 700
    values = np.tile(ids[:, None].astype(np.float32), (1, dim))
    checkpoint = saved(
        tmp_path / "large", [(ids[:700], values[:700]), (ids[700:], values[700:])]
    )
    whole = export_table(
        checkpoint, table="words", format=kind, output=tmp_path / "before" / "t"
    )
    former = [path.read_bytes() for path in whole.files]
    monkeypatch.setattr(rows, "SPOOL_BYTES", 1 << 20)
    monkeypatch.setattr(rows, "PIECE_BYTES", 1 << 19)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    begin = peak_bytes()

    done = export_table(checkpoint, table="words", format=kind, output=tmp_path / "after" / "t")

    assert peak_bytes() - begin < values.nbytes // 2
    assert done.rows == num_rows
    assert [path.read_bytes() for path in done.files] == former


def test_an_increment_is_exported_with_what_it_builds_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SPOOL_BYTES", 16)

    def one(ids: list[int], number: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return np.array(ids, np.int64), np.full((len(ids), 2), number, np.float32)

    saved(tmp_path / "base", [one([5, 1, -2], 0), one([3, 4], 0)])
    saved(tmp_path / "next", [one([7, 3], 1)], base=tmp_path / "base", removed=[1, 4, 3])
    top = saved(tmp_path / "top", [one([4], 2)], base=tmp_path / "next", removed=[7])

    export_table(top, table="words", output=tmp_path / "words.npy")

    assert np.load(tmp_path / "words.ids.npy").tolist() == [-2, 3, 4, 5]
    assert np.load(tmp_path / "words.npy")[:, 0].tolist() == [0, 1, 2, 0]


def test_an_id_in_two_files_is_damage(tmp_path: Path) -> None:
    part = np.array([1, 2], np.int64), np.zeros((2, 2), np.float32)

    with pytest.raises(CheckpointDamagedError, match="large: 2 ids of table 'words' are there"):
        export_table(
            saved(tmp_path / "large", [part, part]), table="words", output=tmp_path / "out"
        )

    assert [path.name for path in tmp_path.iterdir()] == ["large"]


@given(ids=st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), shards=st.integers(1, 1000))
def test_numbers_of_ids_have_the_order_of_shards(ids: list[int], shards: int) -> None:
    keys = ShardKeys(shards)
    ends = [-(1 << 63), (1 << 63) - 1, -1, 0, 1, *ids]

    numbers = keys.numbers(np.array(ends, np.int64))

    order = sorted(set(ends), key=lambda each: (each % (1 << 64) % shards, each))
    assert [ends[place] for place in np.unique(numbers, return_index=True)[1]] == order
    of, again = keys.ids(numbers)
    assert again.tolist() == ends
    assert of.tolist() == [each % (1 << 64) % shards for each in ends]


def test_safetensors_holds_both(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "words.safetensors"

    export_table(checkpoint, table="words", format="safetensors", output=output)

    tensors = load_file(output)
    assert np.array_equal(tensors["rows"], ROWS[ORDER])
    assert np.array_equal(tensors["ids"], IDS[ORDER])


@pytest.mark.parametrize("kind", ["npy", "safetensors", "word2vec"])
def test_modes_of_files_follow_the_umask(
    checkpoint: Path, tmp_path: Path, kind: ExportFormat
) -> None:
    output = tmp_path / "new" / "words"
    former = os.umask(0o027)
    try:
        export_table(checkpoint, table="words", format=kind, output=output)
    finally:
        os.umask(former)

    written = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()]
    assert set(written) == {0o640}


@pytest.mark.parametrize("name", ["u.npy", "u.ids.npy", "u.safetensors", "u.txt"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_that_somebody_put_beside_the_file_is_written_through(
    checkpoint: Path, tmp_path: Path, name: str, kind: str
) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "new"
    victim.write_text("precious")
    folder.mkdir()
    planted = folder / f".{name}.partial"
    reader = None
    if kind == "link":
        planted.symlink_to(victim)
    else:
        os.mkfifo(planted)
        reader = os.open(planted, os.O_RDONLY | os.O_NONBLOCK)  # else opening it would wait

    done = export_table(checkpoint, table="words", output=folder / name.replace(".ids", ""))

    assert victim.read_text() == "precious"
    assert planted.is_symlink() or planted.is_fifo()
    assert {path.name for path in folder.iterdir()} == {
        planted.name, *(path.name for path in done.files),
    }  # fmt: skip
    assert all(path.is_file() and not path.is_symlink() for path in done.files)
    if reader is not None:
        os.close(reader)


def read_text(
    path: Path,
) -> tuple[list[str], np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    assert head == "3 2"
    names = [line.split(" ")[0] for line in lines]
    numbers = [[float(number) for number in line.split(" ")[1:]] for line in lines]
    return names, np.array(numbers, np.float32)


def test_word2vec_is_text_to_the_bit(checkpoint: Path, tmp_path: Path) -> None:
    output, words = tmp_path / "words.txt", tmp_path / "vocabulary"
    words.write_text("zero\none 12\ntwo\nthree 3\nfour\n", encoding="utf-8")

    export_table(checkpoint, table="words", format="word2vec", output=output)
    names, rows = read_text(output)
    assert names == ["1", "3", "4"]
    assert np.array_equal(rows, ROWS[ORDER])

    export_table(checkpoint, table="words", format="word2vec", output=output, words=words)
    assert read_text(output)[0] == ["one", "three", "four"]


def test_only_line_feeds_end_the_lines_of_words(checkpoint: Path, tmp_path: Path) -> None:
    output, words = tmp_path / "words.txt", tmp_path / "vocabulary"
    words.write_bytes("zero\u2028o 5\none\x85\r\ntwo\nthree\xa03 3\nfour\x1c".encode())

    export_table(checkpoint, table="words", output=output, words=words)

    lines = output.read_bytes().decode().split("\n")
    names = [line.split(" ")[0] for line in lines[1:-1]]
    assert names == ["one\x85", "three\xa03", "four\x1c"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"a\nb\n", "has 2 lines, and the table has ids from 1 to 4"),
        (b"a\n" * 4 + b"b c\n", "line 5 must be"),
        (b"a\n" * 5 + b"b\x0bc\n", "line 6 must be"),
        (b"a\n" * 5 + b"b 1 2\n", "line 6 must be"),
        (b"a\n" * 5 + b"b\xff\n", "line 6 isn't UTF-8"),
        (b"a\n" * 5 + b"\n", "line 6 must be"),
        (b"a\n" * 5 + b"b" * (1 << 20), "line 6 is too long"),
    ],
)
def test_words_that_do_not_name_the_ids_are_refused(
    checkpoint: Path, tmp_path: Path, text: bytes, rule: str
) -> None:
    words = tmp_path / "vocabulary"
    words.write_bytes(text)

    with pytest.raises(WordsError, match=rule):
        export_table(
            checkpoint,
            table="words",
            format="word2vec",
            output=tmp_path / "out",
            words=words,
        )
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_is_named(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"

    with pytest.raises(NoSuchTableError, match="did you mean 'words'"):
        export_table(checkpoint, table="word", format="npy", output=output)
    with pytest.raises(NoSuchTableError, match="it has: words"):
        export_table(checkpoint, table="x", format="npy", output=output)
    with pytest.raises(ManifestError):
        export_table(tmp_path, table="words", format="npy", output=output)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointWriteError):
        export_table(checkpoint, table="words", format="npy", output=tmp_path / "file" / "out")
    with pytest.raises(WordsError, match="can't be read"):
        export_table(
            checkpoint, table="words", format="word2vec", output=output, words=tmp_path / "none"
        )


@pytest.mark.parametrize("name", [".", "folder"])
def test_a_folder_is_no_file_to_write_to(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()

    with pytest.raises(CheckpointWriteError, match="is a folder; name a file in it"):
        export_table(checkpoint, table="words", format="npy", output=Path(name))

    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "folder"]


@pytest.mark.parametrize("kind", ["npy", "safetensors", "word2vec"])
@pytest.mark.parametrize(
    "name",
    [
        "checkpoint/part0.safetensors",
        "checkpoint/manifest.json",
        "checkpoint/new",
        "checkpoint/new/words",
        "new/../checkpoint/new",
        "latest/part1.safetensors",
        "other/rows",
    ],
)
def test_nothing_is_written_into_a_checkpoint(
    checkpoint: Path, tmp_path: Path, kind: ExportFormat, name: str
) -> None:
    (tmp_path / "latest").symlink_to(checkpoint)
    (tmp_path / "new").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"format": "paramfleet-export"}')
    before = {path: path.read_bytes() for path in checkpoint.iterdir()}

    with pytest.raises(CheckpointWriteError, match="a checkpoint or an export; name a file"):
        export_table(checkpoint, table="words", format=kind, output=tmp_path / name)

    assert {path: path.read_bytes() for path in checkpoint.iterdir()} == before
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["manifest.json"]


def test_a_manifest_of_something_else_is_no_hindrance(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "of an app"}')

    export_table(checkpoint, table="words", format="npy", output=tmp_path / "words.npy")

    assert np.array_equal(np.load(tmp_path / "words.npy"), ROWS[ORDER])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("u.npy", "npy"), ("u.safetensors", "safetensors"), ("u.txt", "word2vec"),
     ("u.VEC", "word2vec"), ("u", "safetensors")],
)  # fmt: skip
def test_the_suffix_says_the_format(
    checkpoint: Path, tmp_path: Path, name: str, kind: ExportFormat
) -> None:
    done = export_table(checkpoint, table="words", output=tmp_path / "new" / name)
    same = export_table(checkpoint, table="words", format=kind, output=tmp_path / "same" / name)

    written = [path.read_bytes() for path in done.files]
    assert written == [path.read_bytes() for path in same.files]
    assert len(written) == len(list((tmp_path / "new").iterdir())) == 1 + (kind == "npy")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("u.npy", "safetensors"), ("u.safetensors", "word2vec"), ("u.txt", "npy")],
)
def test_a_suffix_of_another_format_is_refused(
    checkpoint: Path, tmp_path: Path, name: str, kind: ExportFormat
) -> None:
    with pytest.raises(ExportFormatError, match=rf"{name}.*--format says {kind}: leave"):
        export_table(checkpoint, table="words", format=kind, output=tmp_path / name)

    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_suffix_of_no_format_needs_one(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownSuffixError, match=r"u\.csv: .* --format, or .*\.npy"):
        export_table(checkpoint, table="words", output=tmp_path / "u.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]

    done = export_table(
        checkpoint, table="words", format="safetensors", output=tmp_path / "u.csv"
    )

    assert done.rows == 3


def test_the_command_names_all_files_and_its_default(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "u.npy"
    command = ["export", str(checkpoint), "--table", "words", "--output", str(output)]

    done = CliRunner().invoke(main, command)
    shown = " ".join(CliRunner().invoke(main, ["export", "--help"]).output.split())

    assert done.output == f"3 rows in {output}, {tmp_path / 'u.ids.npy'}\n"
    assert "By default it follows from the suffix of --output" in shown
    assert "without a suffix it is safetensors" in shown


def test_the_command_says_what_it_wrote(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "words.txt"
    command = ["export", str(checkpoint), "--table", "words", "--format", "word2vec"]

    done = CliRunner().invoke(main, [*command, "--output", str(output)])
    wrong = CliRunner().invoke(
        main, ["export", str(checkpoint), "--table", "w", "--output", str(output)]
    )

    assert (done.exit_code, "3 rows in" in done.output) == (0, True)
    assert wrong.exit_code == 2
    assert "has no sparse table 'w'" in wrong.output
