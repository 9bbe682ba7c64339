"""A table leaves a checkpoint as others read it."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from paramfleet_shared.checkpoint.manifest import (
    CheckpointWriteError,
    FilePart,
    Manifest,
    ManifestError,
    SavedTable,
    write_manifest,
    write_part,
)
from paramfleet_shared.checkpoint.saved_rows import NoSuchTableError
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.exporting import (
    ExportFormatError,
    UnknownSuffixError,
    WordsError,
    export_table,
)
from paramfleet_worker.config import ExportFormat

IDS = np.array([4, 1, 3], np.int64)
ROWS = np.array([[0.1, 1e-30], [-2.5, 3.0], [np.pi, 1 / 3]], np.float32)
ORDER = [1, 2, 0]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    spec = TableSpec(name="words", kind="sparse", dim=2, optimizer=OptimizerSpec(rule="sgd"))
    none = np.empty((3, 0), np.float32)
    files = tuple(
        write_part(
            folder,
            f"part{number}.safetensors",
            spec,
            FilePart(ids=IDS[part], values=ROWS[part], states=none[part]),
        )
        for number, part in enumerate((slice(0, 2), slice(2, 3)))
    )
    tables = (SavedTable(spec=spec, version=1),)
    write_manifest(folder, Manifest(tables=tables, files=files))
    return folder


def test_npy_is_rows_and_ids(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "words.npy"

    done = export_table(checkpoint, table="words", format="npy", output=output)

    assert done == (3, (output, output.with_suffix(".ids.npy")))
    assert np.array_equal(np.load(output), ROWS[ORDER])
    assert np.array_equal(np.load(output.with_suffix(".ids.npy")), IDS[ORDER])
    assert len(list(output.parent.iterdir())) == 2


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


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a\nb\n", "has 2 lines, and the table has ids from"),
        ("a\n" * 4 + "b c\n", "line 5 must be"),
    ],
)
def test_words_that_do_not_name_the_ids_are_refused(
    checkpoint: Path, tmp_path: Path, text: str, rule: str
) -> None:
    words = tmp_path / "vocabulary"
    words.write_text(text, encoding="utf-8")

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
