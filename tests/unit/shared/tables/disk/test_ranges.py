"""Ranges of keys are the same whatever pages there are."""

import numpy as np
import pytest

from paramfleet_shared.tables.disk.kernels.pages import pages_of
from paramfleet_shared.tables.disk.pages.geometry import Geometry
from paramfleet_shared.tables.disk.pages.header import TierState
from paramfleet_shared.tables.disk.pages.ranges import END, KeyRange, place_after
from paramfleet_shared.tables.rows.layout import VALUE, ColumnSpec, RowLayout

SALT = 12345
KEYS = np.arange(5000, dtype=np.uint64) * np.uint64(977)


def ranges(bits: int, share: float) -> list[KeyRange]:
    found, start = [], 0
    while start < END:
        stop = place_after(start, share, bits if not start else 3)  # the first one decides
        found.append(KeyRange.of(start, stop, SALT))
        start = stop
    return found


@pytest.mark.parametrize("bits", [0, 1, 4, 7])
@pytest.mark.parametrize("share", [0.0, 0.07, 0.5, 1.0, 9.0])
def test_each_key_is_in_one_range(bits: int, share: float) -> None:
    found = np.concatenate([each.find(KEYS) for each in ranges(bits, share)])
    assert np.array_equal(np.sort(found), np.arange(KEYS.size))


@pytest.mark.parametrize("geometry", [(1, 2), (1, 4), (8, 17), (8, 31), (64, 128), (64, 200)])
@pytest.mark.parametrize("bits", [0, 1, 4, 7])
def test_a_range_has_the_pages_of_its_keys(bits: int, geometry: tuple[int, int]) -> None:
    form = TierState.new(RowLayout((ColumnSpec(VALUE, 1),)), SALT).form
    homes = np.empty(KEYS.size, np.int64)
    pages_of(KEYS, form, geometry, homes)
    for each in ranges(bits, 0.07):
        pages = each.pages(Geometry(*geometry))
        assert np.array_equal(pages, np.unique(pages))
        assert np.isin(homes[each.find(KEYS)], pages).all()
        assert pages.size <= 4 * min(geometry[0], max(1, geometry[0] >> bits) * 9)


def test_a_range_that_nobody_was_given_has_few_keys_and_pages() -> None:
    for start, stop in ((7, 7), (5 << 50, 1 << 62), ((40 << 48) | 9, (40 << 48) | 9)):
        pages = KeyRange.of(start, stop, SALT).pages(Geometry(64, 128))
        assert pages.size <= 128
    assert place_after(1 << 62, 0.5, 9) == END
