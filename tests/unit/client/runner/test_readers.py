"""The zoo's readers: what they yield, and the line that they refuse."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet.runner import LineError, read_lines
from paramfleet.runner.config import read_config
from paramfleet.runner.folders import load_model_class, load_reader

MODELS = Path(__file__).parents[4] / "models"
SLOTS = " ".join(
    [
        "click:1",
        *(f"dense_feature:0.{n}" for n in range(10, 23)),
        *(f"{slot}:{slot * 100}" for slot in range(1, 27)),
    ]
)
TABLE = "\t".join(["1", "20", "", *["0"] * 11, *(str(n) for n in range(25)), ""])


def samples(model: str, file: Path) -> list[Any]:
    raw = read_config(MODELS / model / "config.yaml")
    config = raw.read_as(load_model_class(raw).parameters)
    return list(load_reader(config, config.runner.train_reader_path)([str(file)], config))


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz"])
def test_slot_text_and_the_raw_table_are_samples_of_one_shape(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    text = f"{SLOTS}\n{TABLE}\n".encode()
    file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    slots, table = samples("rank/dnn", file)

    assert (slots[0], table[0]) == (1, 1)
    assert slots[1].tolist() == [100 * slot for slot in range(1, 27)]
    assert slots[2] == pytest.approx(np.arange(10, 23) / 100)
    assert (table[1].shape, table[2].shape) == ((26,), (13,))
    assert ((table[1] >= 0) & (table[1] < 1_000_001)).all()
    assert table[2][:2] == pytest.approx([np.log(2), 0])


@pytest.mark.parametrize(
    ("model", "line", "rule"),
    [
        ("rank/dnn", SLOTS.replace("3:300", "3:x"), "invalid literal"),
        ("rank/dnn", SLOTS.replace("3:300", "99:300"), "out of bounds"),
        ("rank/dnn", TABLE + "\t1", "41 columns instead of 40"),
        ("rank/dnn", TABLE.replace("20", "y", 1), "could not convert"),
        ("multitask/esmm", "1,0,0", "3 columns instead of 4"),
        ("multitask/esmm", "1,0,0,1,101", "isn't field:id"),
        ("multitask/esmm", "1,0,0,1,101:x", "invalid literal"),
        ("recall/ncf", "1,2", "not enough values"),
        ("recall/ncf", "1,2,x", "invalid literal"),
        ("multitask/mmoe", "1,2", "2 columns instead of 43"),
        ("multitask/mmoe", ",".join(["x"] * 43), "could not convert"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, model: str, line: str, rule: str) -> None:
    file = tmp_path / "rows"
    file.write_text(f"{line}\n")

    with pytest.raises(LineError, match=rule) as caught:
        samples(model, file)

    assert (caught.value.file, caught.value.line) == (str(file), 1)


def test_an_impression_has_up_to_three_ids_a_field_and_zeros(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("9,1,0,1,301:5,150_14:1,150_14:2,150_14:3,150_14:4,none:8\n1,0,0,1\n")

    (ids, clicked, bought), (nothing, *labels) = samples("multitask/esmm", file)

    assert (clicked, bought, labels) == (1, 0, [0, 0])
    assert ids.shape == nothing.shape == (23, 3)
    assert (ids[-1].tolist(), ids[4].tolist()) == ([5, 0, 0], [1, 2, 3])
    assert int(ids.sum()) == 11
    assert not nothing.any()


def test_a_file_that_is_cut_short_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.gz"
    random = np.random.default_rng(1).integers(0, 1 << 60, 20_000)
    file.write_bytes(gzip.compress("\n".join(map(str, random)).encode())[:-5000])

    with pytest.raises(LineError, match="can't be read on") as caught:
        list(read_lines(file))

    assert caught.value.line > 1


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"no gzip"])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / ("rows.gz" if content == b"no gzip" else "rows")
    file.write_bytes(content)

    with pytest.raises(LineError, match="can't be read on"):
        list(read_lines(file))
