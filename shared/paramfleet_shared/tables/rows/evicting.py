"""In which order rows are evicted: one number of each row, its key, the least first.

Expired rows come first, then the others; among both the least valued: by the score where rows
have an accessor, else those that were pushed the longest time ago, or the least often. What is
equal is ordered by a hash of its id, so that the order is the same on any number of pservers.

How often a row was pushed is one number as well, a time. Let a push of step t count
2^(t / half-life): all counts of pushes that fade are in the same order as the sums of these, at
any time, and nothing has to run over the table to fade them. Kept is half-life * log2(sum),
which has no overflow: the step of the last push, and later by one half-life for each doubling
of the pushes. With a short half-life it is the last push, with a long one the number of pushes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.stepping.ctr import CtrTable
from paramfleet_shared.tables.rows.ctr import scores_of
from paramfleet_shared.tables.rows.routing import mixed
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.bounds import MAX_DAY

__all__ = [
    "BIN_BITS",
    "KEY_BITS",
    "NUM_BINS",
    "AsOf",
    "Valued",
    "Worths",
    "count_by_key",
    "eviction_keys",
    "is_valued",
    "latest_of",
    "seen_after",
]

KEY_BITS = 60
"""Of a key: whether the row stays, 31 bits of its value, and 28 of the hash."""

BIN_BITS = 12
NUM_BINS = 1 << BIN_BITS
"""In which keys are counted."""

_VALUE_BITS = 31
_HASH_BITS = KEY_BITS - 1 - _VALUE_BITS
_SIGN = np.uint32(1 << 31)
_HOURS_OF_DAY = 24
_MAX_STEP = 1 << 53


class AsOf(NamedTuple):
    """At what time rows are looked at."""

    now: int = 0
    """Today, of rows with an accessor, from 1970; 0 for none."""
    before: int = 0
    """Rows that keep a step or an hour, and were pushed last before this one, have expired."""


class Worths(NamedTuple):
    """What some rows are worth."""

    ages: NDArray[np.float32]
    """Days, hours or steps since they were pushed, as far as that is known. [m]"""
    scores: NDArray[np.float32]
    """Of rows with an accessor, faded up to the last push of any row. [n]"""


def is_valued(spec: TableSpec) -> bool:
    """Return whether the rows of a table can be told apart by what they are worth."""
    return bool(spec.optimizer.num_counts) or spec.optimizer.tracks != "none"


def latest_of(spec: TableSpec) -> int:
    """Return the greatest day, hour or step that a push of a table may name."""
    if spec.optimizer.tracks == "step":
        return _MAX_STEP
    return MAX_DAY * (_HOURS_OF_DAY if spec.optimizer.tracks == "hour" else 1)


def seen_after(seen: NDArray[np.float32], now: int, half_life: float) -> NDArray[np.float32]:
    """Return what rows keep of their pushes after one more, float32 [n].

    Several pushes in any order leave the same but for rounding.

    Args:
        seen: float32 [n], what they keep; 0 of one that was never pushed.
        now: The step, or the hour, of the push.
        half_life: Of the table's ``OptimizerSpec``.
    """
    later = np.maximum(seen, np.float32(now))
    if not half_life:
        return later
    least = np.minimum(seen, np.float32(now)).astype(np.float64)
    beside = np.log2(1.0 + np.exp2((least - later) / half_life)) * half_life
    return np.where(seen > 0, later + beside, later).astype(np.float32)


class Valued(NamedTuple):
    """The rows of a table, as they are kept."""

    spec: TableSpec
    counted: CtrTable | None = None
    """Of a table with an accessor."""
    seen: NDArray[np.float32] | None = None
    """Of others: when each row was pushed last, by slot."""


def eviction_keys(
    table: Valued, ids: NDArray[np.int64], slots: NDArray[np.int64], when: AsOf
) -> NDArray[np.int64]:
    """Return the keys of the rows at slots: int64 [n], each below 2^60.

    Args:
        table: The rows.
        ids: Theirs, int64 [n].
        slots: Where they are, int64 [n].
        when: The time.
    """
    spec = table.spec
    if table.counted is not None:
        values, expired = scores_of(spec.optimizer, table.counted, slots, day=when.now)
    else:
        assert table.seen is not None, "is_valued"
        values = table.seen[slots]
        expired = (values > 0) & (values < np.float32(when.before))
    bits = values.view(np.uint32)
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN) >> np.uint32(32 - _VALUE_BITS)
    stays = (~expired).astype(np.int64) << (KEY_BITS - 1)
    hashed = (mixed(ids.view(np.uint64)) >> np.uint64(64 - _HASH_BITS)).astype(np.int64)
    keys: NDArray[np.int64] = stays | (ordered.astype(np.int64) << _HASH_BITS) | hashed
    return keys


def count_by_key(keys: NDArray[np.int64], *, low: int, shift: int) -> NDArray[np.int64]:
    """Count keys in bins: int64 [NUM_BINS].

    Args:
        keys: int64 [n].
        low: The least key of the first bin.
        shift: A bin has 2 to the power of this of keys.
    """
    within = keys[(keys >= low) & (keys < low + (NUM_BINS << shift))]
    return np.bincount((within - low) >> shift, minlength=NUM_BINS)
