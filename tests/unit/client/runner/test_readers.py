"""The zoo's readers: what they yield, and the line that they refuse."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramfleet as fleet
from paramfleet.runner import LineError, read_lines
from paramfleet.runner.config.configuration import read_config
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


@pytest.fixture(autouse=True)
def _one_process() -> None:
    fleet.init(fleet.PaddleCloudRoleMaker(environment={}))  # a reader may ask for its rank


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
        ("rank/dnn", SLOTS.replace("3:300", "99:300"), "no slot 99"),
        ("rank/dnn", TABLE + "\t1", "41 columns instead of 40"),
        ("rank/dnn", TABLE.replace("20", "y", 1), "could not convert"),
        ("multitask/esmm", "1,0,0", "3 columns instead of 4"),
        ("multitask/esmm", "1,0,0,1,101", "isn't field:id"),
        ("multitask/esmm", "1,0,0,1,101:x", "invalid literal"),
        ("recall/ncf", "1,2", "not enough values"),
        ("recall/ncf", "1,2,x", "invalid literal"),
        ("multitask/mmoe", "1,2", "2 columns instead of 43"),
        ("rank/din", "1 2;3 4;5;6", "4 parts instead of 5"),
        ("rank/din", "1 2;3;5;6;1", "2 items and 1 categories"),
        ("rank/din", "1 x;3 4;5;6;1", "invalid literal"),
        ("match/dssm", "0,1\t1,0", "2 texts instead of 3"),
        ("match/dssm", "0,1\t1,0\t0,0", "2 trigrams instead of 2900"),
        ("recall/mind", "1,2", "not enough values"),
        ("recall/mind", "1,2,3", "no user has more than 4 items"),
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


def test_a_history_has_its_latest_items_and_a_mask(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    long = [" ".join(str(first + n) for n in range(102)) for first in (1, 1000)]
    file.write_text(f"7 8;70 80;9;90;1\n{long[0]};{long[1]};5;6;0\n")

    (items, categories, *rest, mask), (latest, *_, whole) = samples("rank/din", file)

    assert (items[:3].tolist(), categories[:3].tolist()) == ([7, 8, 0], [70, 80, 0])
    assert (rest, mask[:3].tolist()) == ([9, 90, 1.0], [0, 0, -1_000_000_000])
    assert (latest[0], latest[-1], len(latest)) == (3, 102, 100)
    assert not whole.any()


def test_samples_of_mind_are_items_before_another_in_the_order_of_time(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    rows = [f"1,{10 + time},{time}\n" for time in (5, 1, 0, 3, 2, 4)]
    file.write_text("".join([*rows, "2,99,1\n"]))

    found = samples("recall/mind", file)

    assert len(found) == 128 * 100
    assert {item for _, item, _ in found} == {14, 15}
    for before, item, length in found:
        assert before[:length].tolist() == list(range(10, item))
        assert not before[length:].any()


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


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    text = "a\rb\x85c\r\n\u2028\nend".encode()
    (tmp_path / "part").write_bytes(text)
    (tmp_path / "part.gz").write_bytes(gzip.compress(text))

    expected = [(1, "a\rb\x85c\n"), (2, "\u2028\n"), (3, "end")]
    assert list(read_lines(tmp_path / "part")) == expected
    assert list(read_lines(tmp_path / "part.gz")) == expected
