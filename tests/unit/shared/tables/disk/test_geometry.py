"""How many pages there are, and how they become more or fewer."""

import pytest

from paramfleet_shared.tables.disk.pages.geometry import (
    Geometry,
    fullest_for,
    page_bytes_for,
    rows_in,
)

HOLDS = 56
FULLEST = fullest_for(HOLDS)


def test_pages_have_four_kilobytes_and_more_for_wide_rows() -> None:
    sizes = [page_bytes_for(row_bytes) for row_bytes in (4, 64, 400, 1536, 6144, 16384)]

    assert sizes == [4096, 4096, 4096, 16384, 65536, 65536]


def test_a_page_of_many_rows_may_get_fuller() -> None:
    fullest = [fullest_for(holds) for holds in (3, 10, 26, 56, 338)]

    assert fullest == sorted(fullest)
    assert fullest[0] < 0.4
    assert fullest[-1] == pytest.approx(0.95)


def test_more_rows_never_take_fewer_pages_and_no_page_is_too_full() -> None:
    pages = 0
    for num_rows in range(0, 300_000, 331):
        geometry = Geometry.of(num_rows, HOLDS, FULLEST)
        assert 2 * geometry.groups <= geometry.pages <= 4 * geometry.groups
        assert geometry.pages >= pages
        pages = geometry.pages
        least = 3 if pages >= 3 * geometry.groups else 2
        assert num_rows / (geometry.groups * HOLDS * least) <= FULLEST + 0.01 or least == 3


@pytest.mark.parametrize("most", [4, 36, 100_000])
def test_steps_lead_from_any_geometry_to_any_other(most: int) -> None:
    sizes = [Geometry.of(num, HOLDS, FULLEST) for num in (0, 300, 1_000, 9_999, 123_456, 0)]
    at = sizes[0]
    for wanted in sizes[1:]:
        while step := at.step_to(wanted, most):
            assert step.num * max(step.before, step.after) <= max(most, 4)
            assert abs(step.geometry.pages - at.pages) == step.num
            assert {step.before, step.after} in [{2, 3}, {3, 4}]
            at = step.geometry
        assert at.pages == wanted.pages


def test_a_few_rows_less_take_no_page_away() -> None:
    geometry = Geometry.of(100_000, HOLDS, FULLEST)

    assert geometry.wanted(90_000, HOLDS, FULLEST) == geometry
    assert geometry.wanted(60_000, HOLDS, FULLEST).pages < geometry.pages
    assert geometry.wanted(110_000, HOLDS, FULLEST).pages > geometry.pages


def test_rows_of_a_page_have_their_keys_beside_them() -> None:
    assert rows_in(4096, 64) == 56
