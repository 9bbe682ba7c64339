"""The line at the bottom of a terminal."""

import re

import pytest
from rich.cells import cell_len

from paramfleet_worker.process.terminal.live_line import drawn

PARTS = ("310/500", "0:12 left", "loss 0.1163", "12,345 examples/s", "staleness 2", "sync")


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize("width", [1, 2, 10, 30, 60, 80, 110, 300])
@pytest.mark.parametrize("share", [None, 0.0, 0.62, 1.0])
@pytest.mark.parametrize("unicode", [False, True])
def test_it_fits_and_begins_with_what_matters_most(
    width: int, share: float | None, unicode: bool
) -> None:
    line = drawn(PARTS, share=share, width=width, colours=True, unicode=unicode)

    assert cell_len(plain(line)) <= max(1, width - 1)
    assert "\n" not in line
    if width >= 30:
        assert "310/500  0:12 left" in line
    if width >= 110:
        assert line.endswith("staleness 2  sync")


def test_the_bar_is_as_long_as_what_is_done() -> None:
    lines = [
        drawn(PARTS, share=share, width=120, colours=True, unicode=True)
        for share in (0.0, 0.5, 1.0)
    ]

    bars = [line.partition("\x1b[90m")[0].count("━") for line in lines]
    assert bars == [0, 16, 32]


def test_without_colours_there_are_none_and_without_unicode_only_ascii() -> None:
    assert "\x1b" not in drawn(PARTS, share=0.5, width=100, colours=False, unicode=True)
    assert drawn(PARTS, share=0.5, width=100, colours=False, unicode=False).isascii()


def test_without_a_known_end_there_is_no_bar() -> None:
    assert drawn(PARTS[2:4], share=None, width=80, colours=True, unicode=True) == (
        "loss 0.1163  12,345 examples/s"
    )
