"""Rows of a table that another program has written, and what is wrong with its files.

n = rows, D = row width, W = floats of state.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import ContractError

__all__ = [
    "IDS_SUFFIX",
    "OTHER_TABLE",
    "ForeignRows",
    "ForeignTableError",
    "ids_beside",
    "numbers_of",
    "refuse",
    "whole_of",
]

IDS_SUFFIX = ".ids.npy"
"""Of the file with the ids of rows that another file has."""

OTHER_TABLE = "name another table (--table), or a checkpoint with rows of that width (--into)"
"""What to do where rows don't fit."""

_WHOLE = re.compile(rb"[+-]?[0-9]+")


class ForeignTableError(ContractError):
    """A file isn't a table of the format that it is read as."""

    code = "contract.foreign_table"
    path: str
    line: int
    """From 1; 0 for the file as a whole."""
    rule: str
    sentence = "{path}: {rule}"


class ForeignRows(NamedTuple):
    """Some rows of a table."""

    path: Path
    """Where they are from."""
    ids: NDArray[np.int64]
    """int64 [n]."""
    values: NDArray[np.float32]
    """float32 [n, D]."""
    states: NDArray[np.float32] | None = None
    """float32 [n, W], if they are known: of tables with an accessor."""


def ids_beside(rows: Path) -> Path:
    """Return the file with the ids of a file of rows: ``u.npy`` has ``u.ids.npy``."""
    return rows.with_name(rows.name.removesuffix(".npy") + IDS_SUFFIX)


def refuse(path: Path, rule: str, line: int = 0) -> NoReturn:
    """Say what is wrong with a table.

    Raises:
        ForeignTableError: that.
    """
    raise ForeignTableError(path=str(path), line=line, rule=rule)


def whole_of(text: bytes) -> int:
    """Return a whole number as programs write it: Python reads `1_0` and other digits, too.

    Raises:
        ValueError: if it is none.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError("is no whole number")
    return int(text)


def numbers_of(texts: Sequence[bytes]) -> list[float]:
    """Return numbers as programs write them: Python reads `1_5` and other digits, too.

    Raises:
        ValueError: if one is none.
    """
    joined = b"".join(texts)
    if b"_" in joined or not joined.isascii():
        raise ValueError("has what is no number")
    return [float(each) for each in texts]
