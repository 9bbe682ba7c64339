"""Pages are made ahead of the rows, without a change to what is in them."""

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.memory import prefault
from paramfleet_shared.tables.memory.prefault import (
    LEAST_AHEAD,
    SHARE_AHEAD,
    Lookahead,
    settled,
)
from paramfleet_shared.tables.memory.reservation import SMALL_BYTES, reserve
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

MIB = 1 << 20

linux = pytest.mark.skipif(sys.platform != "linux", reason="madvise as Linux has it")


def resident(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which pages of an array are there."""
    pages = np.zeros(array.nbytes // mmap.PAGESIZE, np.uint8)
    libc = ctypes.CDLL(None)
    where, length = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    assert libc.mincore(where, length, ctypes.c_void_p(pages.ctypes.data)) == 0
    return (pages & 1).astype(bool)


@linux
def test_pages_ahead_of_those_in_use_are_made_and_no_more() -> None:
    array = reserve(64 * MIB, np.uint8)
    look = Lookahead(array)
    used = SMALL_BYTES + MIB

    look.reach(used)
    settled()

    made = resident(array)
    page, huge = mmap.PAGESIZE, 2 * MIB
    assert look.made >= used + LEAST_AHEAD
    assert made[used // page : (used + LEAST_AHEAD) // page].all()
    assert not made[(used + LEAST_AHEAD + huge) // page :].any()
    assert not array[: used + LEAST_AHEAD].any()


@linux
def test_more_is_made_ahead_of_a_large_array_and_never_beyond_its_end() -> None:
    array = reserve(512 * MIB, np.uint8)
    large, full = Lookahead(array), Lookahead(array[: 32 * MIB])

    large.reach(480 * MIB)
    full.reach(31 * MIB)
    settled()

    assert large.made == 480 * MIB + 480 * MIB // SHARE_AHEAD
    assert full.made == 32 * MIB


@linux
def test_what_the_next_batches_need_is_made_ahead_of_an_array_that_grows_fast() -> None:
    array = reserve(512 * MIB, np.uint8)
    look = Lookahead(array)

    look.reach(180 * MIB)
    settled()
    look.reach(200 * MIB)
    settled()

    assert look.made == (200 + 2 * 20) * MIB


def test_small_arrays_stay_small() -> None:
    array = reserve(64 * MIB, np.uint8)
    look = Lookahead(array)

    look.reach(SMALL_BYTES - LEAST_AHEAD - 1)
    settled()

    assert look.made == SMALL_BYTES
    assert not resident(array).any()


@linux
def test_what_is_written_meanwhile_stays() -> None:
    array = reserve(48 * MIB // 8, np.int64)
    look = Lookahead(array)

    for start in range(0, array.size, array.size // 48):
        stop = start + array.size // 48
        array[start:stop] = np.arange(start, stop)
        look.reach(8 * stop)
    settled()

    np.testing.assert_array_equal(array, np.arange(array.size))


def test_where_the_system_cannot_pages_are_made_at_first_touch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array = reserve(64 * MIB, np.uint8)
    refused, lacking = Lookahead(array), Lookahead(array)

    monkeypatch.setattr(prefault, "_MADVISE", lambda *_: -1)
    refused.reach(32 * MIB)
    settled()
    monkeypatch.setattr(prefault, "_MADVISE", None)
    lacking.reach(32 * MIB)

    assert not resident(array).any()
    array[40 * MIB] = 1


@pytest.mark.slow
def test_a_table_that_grows_under_the_thread_is_as_one_that_does_not() -> None:
    spec = TableSpec(name="t", kind="sparse", dim=64, optimizer=OptimizerSpec(rule="adagrad"))
    shard = SparseShard(spec)
    ids = np.random.default_rng(0).integers(0, 2**62, 80_000)
    grads = np.ones((8_000, 64), np.float32)

    for batch in ids.reshape(10, -1):
        shard.push(batch, grads, lr=0.5, step=1, unique=True)
    settled()

    _, values, states = shard.export(0, ids.size)
    assert (values == -0.5).all()
    assert (states == 1.0).all()


@linux
def test_the_pages_of_rows_to_come_can_be_made_at_once() -> None:
    array = reserve(64 * MIB, np.uint8)
    Lookahead(array).make_now(20 * MIB + 1)

    page, huge = mmap.PAGESIZE, 2 * MIB
    made = resident(array)
    assert made[: 20 * MIB // page + 1].all()
    assert not made[(20 * MIB + huge) // page :].any()


def test_a_shard_whose_pages_were_made_before_keeps_its_rows() -> None:
    spec = TableSpec(name="t", kind="sparse", dim=4, optimizer=OptimizerSpec(rule="sgd"))
    plain, ready = SparseShard(spec), SparseShard(spec)
    ready.prefault(5_000)
    ids = np.random.default_rng(0).integers(0, 2**63, 8_000, np.int64)
    rows = [np.zeros((ids.size, 4), np.float32) for _ in range(2)]

    for shard, out in zip((plain, ready), rows, strict=True):
        shard.pull(ids, out, create=True)

    assert (rows[0] == rows[1]).all()
    assert ready.num_rows == plain.num_rows == ids.size
