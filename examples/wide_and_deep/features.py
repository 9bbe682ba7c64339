"""Table columns into what a wide and deep model reads: 64-bit ids and floats.

Every field, a column or a cross of columns, becomes one id per row:
``field << 48 | hash48(values)``. So all fields of a side share one sparse table
and never meet on an id; within a field two values meet with a chance of 2**-48
a pair. No vocabulary is counted or stored.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["HASH_BITS", "Field", "field_ids", "standardised"]

Field: TypeAlias = tuple[str, ...]
"""The columns that are crossed into one id; a single column is a cross of one."""

HASH_BITS = 48
"""Low bits of an id that hold the hash; the field number sits above them."""

MAX_FIELDS = 1 << (63 - HASH_BITS)
"""More fields than this would reach the sign bit, and ids must not be negative."""

_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


def field_ids(frame: pd.DataFrame, fields: Sequence[Field]) -> NDArray[np.int64]:
    """Return the id of every field of every row, equal on every machine.

    Args:
        frame: Columns named in ``fields``; a missing value is a value of its own.
        fields: The columns of each field. The place of a field is part of its ids.

    Returns:
        int64 ``[rows, fields]``, none negative.

    Raises:
        ValueError: There are more fields than an id has room for.
    """
    if len(fields) > MAX_FIELDS:
        msg = f"{len(fields)} fields, but an id has room for {MAX_FIELDS}"
        raise ValueError(msg)
    names = {name for field in fields for name in field}
    hashes = {name: _column_hash(frame[name]) for name in names}
    ids = np.empty((len(frame), len(fields)), dtype=np.int64)
    for number, field in enumerate(fields):
        crossed = np.zeros(len(frame), dtype=np.uint64)
        for name in field:
            crossed = _mixed(crossed * np.uint64(31) + hashes[name])
        low_bits = crossed >> np.uint64(64 - HASH_BITS)
        ids[:, number] = low_bits.astype(np.int64) | np.int64(number << HASH_BITS)
    return ids


def standardised(columns: pd.DataFrame, train_rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return numbers with mean 0 and deviation 1 as measured on the training rows.

    A missing value becomes 0, the mean. Values beyond 5 deviations are cut there, so
    that one odd row does not carry a batch.

    Args:
        columns: Numbers; a column that never varies becomes all 0.
        train_rows: The rows that may be measured.

    Returns:
        float32 ``[rows, columns]``.
    """
    values = columns.to_numpy(dtype=np.float64)
    mean = np.nanmean(values[train_rows], axis=0)
    deviation = np.nanstd(values[train_rows], axis=0)
    scaled = (values - mean) / np.where(deviation > 0, deviation, 1.0)
    cut: NDArray[np.float64] = np.nan_to_num(scaled, nan=0.0).clip(-5.0, 5.0)
    return cut.astype(np.float32)


def _column_hash(column: pd.Series) -> NDArray[np.uint64]:
    """Return one hash per row, of the value's text; a missing value hashes as ''."""
    codes, values = pd.factorize(column)
    text = np.array(["", *(str(value) for value in values)], dtype=object)
    return pd.util.hash_array(text)[codes + 1]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values with their bits spread, by the finaliser of MurmurHash3."""
    values = (values ^ (values >> _SHIFT)) * _MIX_1
    values = (values ^ (values >> _SHIFT)) * _MIX_2
    return values ^ (values >> _SHIFT)
