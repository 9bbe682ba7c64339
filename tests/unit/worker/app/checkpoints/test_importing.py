"""A table's rows come from other programs into a checkpoint."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_shared.checkpoint.layers import read_layers
from paramfleet_shared.checkpoint.manifest import read_manifest
from paramfleet_shared.checkpoint.saved_rows import NoSuchTableError, load_rows
from paramfleet_shared.files.folders import FolderNameError
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.checkpoints.foreign import ForeignTable, PaddleText
from paramfleet_worker.app.checkpoints.foreign_rows import ForeignTableError
from paramfleet_worker.app.checkpoints.importing import import_table
from paramfleet_worker.app.checkpoints.paddle_text import ACCESSORS, PADDLE_RULES
from paramfleet_worker.app.checkpoints.verifying import verify
from paramfleet_worker.app.export.table import export_table
from paramfleet_worker.config import ExportFormat, ImportFormat, PaddleAccessor, PaddleRule

Write = Callable[..., Path]
IDS = np.array([7, -3, 1 << 62], np.int64)
ROWS = np.array([[0.1, 1e-30], [-2.5, 3.0], [np.pi, 1 / 3]], np.float32)


def npy(folder: Path, ids: Any = IDS, rows: Any = ROWS) -> Path:
    np.save(folder / "t.npy", rows)
    np.save(folder / "t.ids.npy", ids)
    return folder / "t.npy"


def imported(tmp_path: Path, source: ForeignTable, into: Path, table: str = "ads") -> Path:
    output = tmp_path / "new" / "checkpoint"
    import_table(source, into=into, table=table, output=output)
    return output


@pytest.mark.parametrize("form", ["npy", "safetensors", "word2vec"])
def test_what_was_exported_comes_back_to_the_bit(
    write: Write, tmp_path: Path, form: ExportFormat
) -> None:
    base = write()
    exported = tmp_path / "exported"
    export_table(base, table="ads", format=form, output=exported)

    output = imported(tmp_path, ForeignTable(exported, form), write("other", ids=[999]))

    was, now = load_rows(base, "ads"), load_rows(output, "ads")
    assert now.ids.tobytes() == was.ids.tobytes()
    assert now.rows.tobytes() == was.rows.tobytes()


def test_the_rest_of_the_checkpoint_stays_and_the_optimizer_begins_anew(
    write: Write, tmp_path: Path
) -> None:
    base = write()

    output = imported(tmp_path, ForeignTable(npy(tmp_path), "npy"), base)

    assert not verify(output).problems
    was, now = read_manifest(base), read_manifest(output)
    assert (now.tables, now.module, now.progress) == (was.tables, was.module, was.progress)
    assert now.save != was.save
    layers = read_layers(output, now)
    (dense,) = [each.read() for each in layers.files("dense_0")][:1]
    assert dense.values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    for part in (each.read() for each in layers.files("ads")):
        assert not part.states.any()
        assert part.values.tolist() == ROWS.tolist()
    assert sorted(load_rows(base, "ads").ids.tolist()) == list(range(40))


def paddle_line(key: int, row: list[float], text: PaddleText, *, short: bool = False) -> str:
    """Return a row as Paddle's accessors write it; states are 9, counters 8."""
    assert text.rule is not None
    assert text.accessor != "none"
    states, dim = PADDLE_RULES[text.rule], len(row)
    first = [*[8.0] * ACCESSORS[text.accessor].before, row[0], *[9.0] * states(1)]
    first += [8.0] * ACCESSORS[text.accessor].others
    rest, more = [9.0] * states(dim - 1), row[1:]
    if not ACCESSORS[text.accessor].states_last:
        rest, more = more, rest
    numbers = first if short else [*first, *more, *rest]
    return " ".join([str(key), *(f"{each:g}" for each in numbers)])


@pytest.mark.parametrize("accessor", sorted(ACCESSORS))
@pytest.mark.parametrize("rule", sorted(PADDLE_RULES))
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_table_that_paddle_saved_is_read_as_it_lays_rows_out(
    write: Write,
    tmp_path: Path,
    accessor: PaddleAccessor,
    rule: PaddleRule,
    suffix: str,
) -> None:
    text, folder = PaddleText(accessor, rule), tmp_path / "000"
    folder.mkdir()
    pieces = [
        [paddle_line(7, [0.25, -1.5], text), paddle_line(8, [0.5, 0.0], text, short=True)],
        [paddle_line((1 << 64) - 3, [2.0, 3.0], text)],
    ]
    for number, lines in enumerate(pieces):
        content = "".join(f"{line}\n" for line in lines).encode()
        path = folder / f"part-000-0000{number}{suffix}"
        path.write_bytes(gzip.compress(content) if suffix else content)
    (folder / "meta").write_text("not a part")

    output = imported(tmp_path, ForeignTable(folder, "paddle", text), write())

    found = load_rows(output, "ads")
    assert found.ids.tolist() == [-3, 7, 8]
    assert found.rows.tolist() == [[2.0, 3.0], [0.25, -1.5], [0.5, 0.0]]


def test_rows_of_another_layout_are_named_with_what_writes_them(
    write: Write, tmp_path: Path
) -> None:
    folder = tmp_path / "000"
    folder.mkdir()
    adagrad = PaddleText("CtrCommonAccessor", "SparseAdaGradSGDRule")
    (folder / "part-0").write_text(paddle_line(7, [0.25, -1.5], adagrad) + "\n")

    with pytest.raises(ForeignTableError) as refused:
        imported(tmp_path, ForeignTable(folder, "paddle"), write())

    assert "part-0: line 1 has 9 numbers after its key" in str(refused.value)
    assert "SparseAccessor with SparseAdamSGDRule writes 10 or 15 for 2 values" in str(
        refused.value
    )
    assert "CtrCommonAccessor with SparseAdaGradSGDRule" in str(refused.value)
    assert refused.value.line == 1


WORDS = "3 2\na 1 2\nb 3 4\nc 5 6\n"


def test_words_have_the_ids_of_their_lines(write: Write, tmp_path: Path) -> None:
    (tmp_path / "t.vec").write_text(WORDS)
    (tmp_path / "words").write_text("c 90\nb 80\na 70\n")
    source = ForeignTable(tmp_path / "t.vec", "word2vec", words=tmp_path / "words")

    found = load_rows(imported(tmp_path, source, write()), "ads")

    assert found.ids.tolist() == [0, 1, 2]
    assert found.rows.tolist() == [[5.0, 6.0], [3.0, 4.0], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "line 1 must say how many rows"),
        ("3\n1 2 3\n", "line 1 must say how many rows"),
        ("9" * 5000 + " 2\n1 2 3\n", "line 1 must say how many rows"),
        ("1 " + "2" * 5000 + "\n1 2 3\n", "line 1 must say how many rows"),
        ("\u0661 2\n1 2 3\n", "line 1 must say how many rows"),
        ("1 2\n1_0 2 3\n", "line 2 ('1_0' ...) must have numbers after its first word"),
        ("1 2\n\u0661 2 3\n", "line 2 ('\u0661' ...) must have numbers after its first word"),
        ("1 2\n1 1_5 3\n", "line 2 ('1' ...) must have numbers after its first word"),
        ("1 2\n1 2 \u0663\n", "line 2 ('1' ...) must have numbers after its first word"),
        (
            "1 3\n1 2 3 4\n",
            "its rows have 3 numbers, and those of the table 2: name another table",
        ),
        ("1 2\n1 2\n", "line 2 has 1 numbers, and a row of the table 2: mend the line"),
        ("1 2\nx 2 3\n", "line 2 ('x' ...) must have numbers after its first word"),
        ("1 2\n1 2 x\n", "line 2 ('1' ...) must have numbers after its first word"),
        ("2 2\n1 2 3\n", "has 1 rows, and its first line says 2: the file was cut off"),
        ("2 2\n1 2 3\n1 4 5\n", "id 1 has two rows: keep one of them"),
        ("1 2\n1 nan 3\n", "the row of id 1 has a number that isn't finite: mend"),
        ("1 2\n1 1e300 3\n", "the row of id 1 has a number that isn't finite: mend"),
        ("1 2\n9223372036854775808 2 3\n", "is no id of 64 bits"),
        ("1 2\n" + "1" * 5000 + " 2 3\n", "give the list of them by --words"),
        (b"\xff\xfe", "line 1 must say how many rows"),
        ("1 2\nx\xa0y 2 3\n", "line 2 ('x\\xa0y' ...) must have numbers after its first word"),
        ("1 2\n1 2 " + "3" * (1 << 20), "line 2 is too long"),
    ],
)
def test_what_is_no_text_of_words_is_named(
    write: Write, tmp_path: Path, text: str | bytes, rule: str
) -> None:
    path = tmp_path / "t.vec"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(ForeignTableError) as refused:
        imported(tmp_path, ForeignTable(path, "word2vec"), write())

    assert rule in str(refused.value)
    assert "t.vec" in str(refused.value)
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(
    ("ids", "rows", "rule"),
    [
        (IDS, ROWS[:2], "one for each id"),
        (IDS, ROWS[:, 0], "one for each id"),
        (IDS, ROWS.astype(np.int64), "must be floats"),
        (IDS.astype(np.float32), ROWS, "must be whole numbers"),
        (IDS[:, None], ROWS, "must be whole numbers"),
        (IDS, np.ones((3, 5), np.float32), "its rows have 5 numbers, and those of the table 2"),
        (IDS, np.array([[1, 2], [np.inf, 0], [0, 0]]), "the row of id -3 has a number"),
        (np.array([1, 2, 1]), ROWS, "id 1 has two rows: keep one of them"),
        (IDS, np.array([{}] * 3), "can't be read"),
    ],
)
def test_arrays_that_are_no_table_are_named(
    write: Write, tmp_path: Path, ids: Any, rows: Any, rule: str
) -> None:
    with pytest.raises(ForeignTableError, match=r"t.*npy") as refused:
        imported(tmp_path, ForeignTable(npy(tmp_path, ids, rows), "npy"), write())

    assert rule in str(refused.value)


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"PK\x05\x06" + bytes(18), None])
def test_an_archive_is_no_array(tmp_path: Path, content: bytes | None) -> None:
    path = npy(tmp_path)
    if content is None:
        with path.open("wb") as file:
            np.savez(file, rows=ROWS)
    else:
        path.write_bytes(content)

    with pytest.raises(ForeignTableError, match=r"t\.npy: isn't a file of numpy\.save"):
        list(ForeignTable(path, "npy").read(dim=2))


def test_an_array_with_a_broken_head_is_named(tmp_path: Path) -> None:
    path = npy(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"{'descr'", b"{(descr'"))

    with pytest.raises(ForeignTableError, match=r"t\.npy: can't be read"):
        list(ForeignTable(path, "npy").read(dim=2))


@pytest.mark.parametrize(
    "line", ["1_0 0.5 1", "\u0661 0.5 1", "1 1_5 1", "1 \u0661 1", "1 0.5 \uff11"]
)
def test_only_plain_numbers_are_numbers_of_paddle(tmp_path: Path, line: str) -> None:
    (tmp_path / "part-0").write_text(f"{line}\n", encoding="utf-8")
    text = PaddleText("none")

    with pytest.raises(
        ForeignTableError, match="line 1 must be a whole number, the key, and numbers"
    ):
        list(ForeignTable(tmp_path, "paddle", text).read(dim=2))


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("npy", "t.npy"),
        ("npy", "t.ids.npy"),
        ("safetensors", "t.npy"),
        ("word2vec", "t.npy"),
        ("word2vec", "words"),
        ("paddle", "part-0"),
        ("paddle", "part-0.gz"),
        ("dcp", ".metadata"),
    ],
)
def test_a_pipe_is_not_waited_for(tmp_path: Path, form: ImportFormat, name: str) -> None:
    npy(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    path = tmp_path if form in {"paddle", "dcp"} else tmp_path / "t.npy"
    words = tmp_path / "words" if name == "words" else None

    with pytest.raises(ForeignTableError, match=f"{name}: can't be read: isn't a regular"):
        list(ForeignTable(path, form, words=words).read(dim=2))


def test_words_have_lines_that_only_line_feeds_end(write: Write, tmp_path: Path) -> None:
    (tmp_path / "t.vec").write_text(WORDS, encoding="utf-8")
    (tmp_path / "words").write_bytes("x\u2028y 90\r\nb\nc\na".encode())
    source = ForeignTable(tmp_path / "t.vec", "word2vec", words=tmp_path / "words")

    assert load_rows(imported(tmp_path, source, write()), "ads").ids.tolist() == [1, 2, 3]


def test_words_with_blanks_of_unicode_come_back(write: Write, tmp_path: Path) -> None:
    base, words, text = write("base", ids=[0, 1, 2]), tmp_path / "words", tmp_path / "t.vec"
    words.write_bytes("a\u2028b\nc\x85\nd\x1c\xa0e 7\n".encode())
    export_table(base, table="ads", output=text, words=words)
    source = ForeignTable(text, "word2vec", words=words)

    found = load_rows(imported(tmp_path, source, write("other", ids=[999])), "ads")

    assert found.rows.tobytes() == load_rows(base, "ads").rows.tobytes()


@pytest.mark.parametrize("form", ["npy", "safetensors", "word2vec", "paddle", "dcp"])
@given(content=st.binary(max_size=60))
def test_any_bytes_are_a_table_or_named(
    tmp_path_factory: pytest.TempPathFactory, form: ImportFormat, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    for name in ("t.npy", "t.ids.npy", "part-0", ".metadata"):
        (folder / name).write_bytes(content)
    path = folder if form in {"paddle", "dcp"} else folder / "t.npy"
    rows, problem = [], str(folder)
    try:
        rows = list(ForeignTable(path, form).read(dim=2))
    except ForeignTableError as error:
        problem = str(error)

    assert str(folder) in problem
    assert all(len(each.ids) == len(each.values) for each in rows)


def test_an_unknown_table_and_a_taken_name_change_nothing(write: Write, tmp_path: Path) -> None:
    base, source = write(), ForeignTable(npy(tmp_path), "npy")

    with pytest.raises(NoSuchTableError, match="did you mean 'ads'"):
        imported(tmp_path, source, base, "adds")
    (tmp_path / "new" / "checkpoint").mkdir(parents=True)
    (tmp_path / "new" / "checkpoint" / "mine").touch()
    with pytest.raises(FolderNameError):
        imported(tmp_path, source, base)

    assert [each.name for each in (tmp_path / "new").rglob("*")] == ["checkpoint", "mine"]


def test_the_command_says_what_it_has_done(write: Write, tmp_path: Path) -> None:
    words = ["checkpoint", "import", str(npy(tmp_path)), "--format=npy", "--table=ads"]
    words += [f"--into={write()}", f"--output={tmp_path / 'new'}"]

    said = CliRunner().invoke(main, words)
    again = CliRunner().invoke(main, [*words, "--json"])
    wrong = CliRunner().invoke(main, [*words[:4], "--table=x", *words[5:]])

    assert said.stdout == f"{tmp_path / 'new'}: 3 rows of table 'ads' imported, instead of 40\n"
    assert json.loads(again.stdout)["rows"] == 3
    assert wrong.exit_code == 2
    assert "has no sparse table 'x'" in wrong.stderr
