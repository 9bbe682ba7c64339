"""MultiSlot text becomes rows, to the bit, in whatever pieces it comes."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramfleet.data.parsing.bad_lines import BadLineError, BadLines, OnBadLine
from paramfleet.data.parsing.parser import Block, Parser, Scratch
from paramfleet.data.parsing.rows import Rows
from paramfleet.data.parsing.slots import Layout, Slot

LAYOUT = Layout((Slot("label", dense=True), Slot("price", "float32"), Slot("words")))


def bad_lines(on_bad_line: OnBadLine = "raise", folder: Path = Path("none")) -> BadLines:
    return BadLines(on_bad_line, folder, Counter())


def parse(
    text: bytes,
    layout: Layout = LAYOUT,
    *,
    lines: BadLines | None = None,
    cuts: tuple[int, ...] = (),
    skip: int = 0,
) -> list[Block]:
    parser = Parser(
        layout,
        Scratch(layout),
        lines or bad_lines(),
        source="part-0",
        file=("part-0", 0),
        skip=skip,
    )
    blocks = []
    edges = [0, *sorted(cuts), len(text)]
    for begin, end in itertools.pairwise(edges):
        blocks += list(parser.feed(text[begin:end]))
    return blocks + list(parser.finish())


def samples(rows: Rows, layout: Layout = LAYOUT) -> list[list[list[Any]]]:
    """Return every row's values by slot, read in the plainest way."""
    found = []
    for row in range(len(rows)):
        at = {0: int(rows.id_starts[row]), 1: int(rows.float_starts[row])}
        sample = []
        for slot, kind in enumerate(layout.is_float.tolist()):
            count = int(rows.counts[row, slot])
            values = (rows.ids, rows.floats)[kind][at[kind] : at[kind] + count]
            at[kind] += count
            sample.append(values.tolist())
        found.append(sample)
    return found


def read(text: bytes, **options: Any) -> list[list[list[Any]]]:
    return samples(Rows.join([block.rows for block in parse(text, **options)]))


def floats(values: list[float]) -> Any:
    return np.array(values, np.float32)


def as_int64(word: str) -> int:
    return int(np.array([int(word) % 2**64], np.uint64).view(np.int64)[0])


def test_each_slot_gets_its_values() -> None:
    text = b"1 1 2 0.5 -2 3 7 8 9\n1 0 1 1e3 0\n"

    assert read(text) == [[[1], [0.5, -2.0], [7, 8, 9]], [[0], [1000.0], []]]


def test_slots_may_be_empty_and_lines_blank() -> None:
    assert read(b"\n1 1 0 0\r\n \t\n1 0\t0  0 ") == [[[1], [], []], [[0], [], []]]


ID_WORDS = [
    "0", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551615",
    "-9223372036854775808", "16543128959394097760", "00000000000000000000007",
]  # fmt: skip


@pytest.mark.parametrize("word", ID_WORDS)
def test_an_id_keeps_its_64_bits(word: str) -> None:
    assert read(f"1 0 0 1 {word}\n".encode()) == [[[0], [], [as_int64(word)]]]


FLOAT_WORDS = [
    "0.00497512437811", "-0.0", "3.4028234663852886e38", "1e-45", "1.17549435e-38", "16777217",
    "0.1234567890123456789012345", "1.00000005960464477539062500001", "1" + "0" * 30,
    "0." + "0" * 60 + "1", "1E+10", "5.", ".5", "1e-999999", "33554433.0000000001",
]  # fmt: skip


@pytest.mark.parametrize("word", FLOAT_WORDS)
def test_a_float_is_the_one_that_python_reads(word: str) -> None:
    (((_, (value,), _)),) = read(f"1 0 1 {word} 0\n".encode())

    assert np.float32(value).tobytes() == np.float32(float(word)).tobytes()


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_every_float32_is_read_back(values: list[float]) -> None:
    words = " ".join([repr(value) for value in values])

    ((_, found, _),) = read(f"1 0 {len(values)} {words} 0\n".encode())

    assert floats(found).tobytes() == floats(values).tobytes()


@settings(max_examples=200)
@given(st.lists(st.floats(-1e30, 1e30, allow_subnormal=False), max_size=20))
def test_a_double_is_rounded_as_numpy_does(values: list[float]) -> None:
    words = " ".join([repr(value) for value in values])

    ((_, found, _),) = read(f"1 0 {len(values)} {words} 0\n".encode())

    assert floats(found).tobytes() == floats(values).tobytes()


def test_midpoints_of_float32s_are_rounded_as_numpy_does() -> None:
    random = np.random.default_rng(5)
    low = random.random(2000, np.float32)
    middle = low.astype(np.float64) + np.spacing(low).astype(np.float64) / 2
    words = [f"{value:.{digits}g}" for value in middle.tolist() for digits in (16, 17, 20, 30)]

    ((_, found, _),) = read(f"1 0 {len(words)} {' '.join(words)} 0\n".encode())

    assert floats(found).tobytes() == floats([float(word) for word in words]).tobytes()


SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(st.floats(-1e6, 1e6, width=32), max_size=4),
        st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(SAMPLES, st.lists(st.integers(0, 400), max_size=4), st.booleans())
def test_the_pieces_that_text_comes_in_change_nothing(
    given_samples: list[tuple[int, list[float], list[int]]], cuts: list[int], ends: bool
) -> None:
    lines = [
        " ".join(map(str, [1, label, len(prices), *prices, len(ids), *ids]))
        for label, prices, ids in given_samples
    ]
    text = "\n".join(lines).encode() + (b"\n" if ends and lines else b"")

    found = read(text, cuts=tuple(min(cut, len(text)) for cut in cuts))

    assert found == [
        [[label], floats(prices).tolist(), [as_int64(str(word)) for word in ids]]
        for label, prices, ids in given_samples
    ]


BAD = [
    (b"1 1 0", "words", 6, "the line ends before this slot"),
    (b"x 1 0 0", "label", 1, "a slot begins with the number of its values, which 'x' is not"),
    (b"1 1 -1 0", "price", 5, "which '-1' is not"),
    (b"1 1 1.0 0.5 0", "price", 5, "which '1.0' is not"),
    (b"1 1 0 99999999999 1", "words", 7, "which '99999999999' is not"),
    (b"1 1 0 2 5", "words", 10, "the line ends before the slot's last value"),
    (b"1 1 0 1000 5", "words", 7, "the line ends before the slot's last value"),
    (b"1 1 1", "price", 6, "the line ends before the slot's last value"),
    (b"1 1 0 1 0.5", "words", 9, "'0.5' is no whole number, which an int64 slot takes"),
    (b"1 1 0 1 -", "words", 9, "'-' is no whole number"),
    (b"1 1 0 1 18446744073709551616", "words", 9, "does not fit"),
    (b"1 1 0 1 99999999999999999999", "words", 9, "does not fit"),
    (b"1 1 0 1 -9223372036854775809", "words", 9, "does not fit"),
    (b"1 1 1 abc 0", "price", 7, "'abc' is no number, which a float32 slot takes"),
    (b"1 1 1 nan 0", "price", 7, "'nan' is no number"),
    (b"1 1 1 . 0", "price", 7, "'.' is no number"),
    (b"1 1 1 1e 0", "price", 7, "'1e' is no number"),
    (b"1 1 1 1.2.3 0", "price", 7, "'1.2.3' is no number"),
    (b"1 1 1 1e39 0", "price", 7, "does not fit"),
    (b"1 1 1 1" + b"0" * 60 + b" 0", "price", 7, "does not fit"),
    (b"2 1 1 0 0", "label", 1, "the slot is dense and takes 1 values, not '2'"),
    (b"1 1 0 0 7", "words", 9, "'7' is after the last slot"),
    (b"\xff\x00", "label", 1, "is not"),
]


@pytest.mark.parametrize(("line", "slot", "column", "reason"), BAD)
def test_an_error_names_line_slot_and_column(
    line: bytes, slot: str, column: int, reason: str
) -> None:
    with pytest.raises(BadLineError) as caught:
        parse(b"\n1 1 0 0\n" + line + b"\n1 0 0 0\n")

    error = caught.value
    assert (error.source, error.line, error.slot, error.column) == ("part-0", 3, slot, column)
    assert reason in error.reason
    assert str(error).startswith(f"part-0, line 3, slot {slot}, column {column}: ")


def test_rows_before_a_bad_line_come_before_its_error() -> None:
    parser = Parser(LAYOUT, Scratch(LAYOUT), bad_lines(), source="part-0", file=("part-0", 0))
    blocks = parser.feed(b"1 1 0 0\n1 0 0 0\nbad\n1 1 0 0\n")

    assert len(next(blocks).rows) == 2
    with pytest.raises(BadLineError, match="line 3"):
        next(blocks)


@pytest.mark.parametrize("on_bad_line", ["skip", "quarantine"])
def test_bad_lines_are_left_out_and_counted(on_bad_line: OnBadLine, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    lines = BadLines(on_bad_line, tmp_path, counts)

    blocks = parse(b"bad\n1 1 0 0\n1 x 0 0\r\n1 0 0 0\n1 1 0\n", lines=lines)

    assert samples(Rows.join([block.rows for block in blocks])) == [
        [[1], [], []],
        [[0], [], []],
    ]
    assert [line for block in blocks for line in block.lines.tolist()] == [2, 4]
    assert blocks[-1].end_line == 5
    assert counts == {"part-0": 3}


def test_a_quarantine_keeps_bad_lines_with_their_reasons(tmp_path: Path) -> None:
    lines = BadLines("quarantine", tmp_path, Counter())

    parse(b"bad\n1 1 0 0\n1 x 0 0\r\n", lines=lines)

    first, second = lines.path_of("part-0").read_bytes().splitlines()
    assert first.split(b"\t")[::4] == [b"1", b"bad"]
    assert second.split(b"\t") == [
        b"3", b"label", b"3", b"'x' is no whole number, which an int64 slot takes", b"1 x 0 0",
    ]  # fmt: skip


def test_a_quarantine_has_no_line_twice_when_lines_are_read_again(tmp_path: Path) -> None:
    lines = BadLines("quarantine", tmp_path, Counter())
    text = b"bad\rline\n1 1 0 0\nworse\n"
    parse(text, lines=lines)

    lines.begin("part-0", lines_read=2)
    parse(text, lines=lines, skip=2)

    kept = lines.path_of("part-0").read_bytes().split(b"\n")
    assert [entry.split(b"\t")[0] for entry in kept] == [b"1", b"3", b""]
    assert kept[0].endswith(b"bad\rline")


def test_a_quarantine_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    lines = BadLines("quarantine", tmp_path / "quarantine", Counter())
    victim = tmp_path / "victim"
    victim.write_bytes(b"1\tprecious\n9\tprecious\n")
    (tmp_path / "quarantine").mkdir()
    lines.path_of("part-0").symlink_to(victim)

    lines.begin("part-0", lines_read=2)
    parse(b"bad\n1 1 0 0\n", lines=lines)

    assert victim.read_bytes() == b"1\tprecious\n9\tprecious\n"
    (entry,) = lines.path_of("part-0").read_bytes().splitlines()
    assert entry.startswith(b"1\tlabel\t")


@pytest.mark.parametrize("cuts", [(), (3,), (8, 9, 16), (20,)])
@pytest.mark.parametrize("skip", [0, 1, 2, 3, 4, 9])
def test_lines_used_before_are_passed_over(skip: int, cuts: tuple[int, ...]) -> None:
    text = b"1 0 0 0\nbad\n1 2 0 0\n1 3 0 0"
    lines = BadLines("skip", Path("none"), Counter())

    blocks = parse(text, lines=lines, cuts=cuts, skip=skip)

    found = [line for block in blocks for line in block.lines.tolist()]
    assert found == [line for line in (1, 3, 4) if line > skip]


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    parser = Parser(LAYOUT, Scratch(LAYOUT), bad_lines(), source="part-0", file=("part-0", 0))

    with pytest.raises(BadLineError, match="does not end within 64 MiB"):
        list(parser.feed(bytes(65 << 20)))
