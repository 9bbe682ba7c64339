"""How a table's rows are divided into files."""

from hypothesis import given
from hypothesis import strategies as st

from paramfleet_pserver.storage import plan_chunks


def test_blocks_share_files_until_they_are_full() -> None:
    assert plan_chunks([3, 0, 5], 4) == [[(0, 0, 3), (2, 0, 1)], [(2, 1, 4)]]


def test_a_table_without_rows_needs_no_file() -> None:
    assert plan_chunks([0, 0], 4) == []


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 12))
def test_every_row_is_in_one_file_and_only_the_last_is_not_full(
    rows: list[int], chunk_rows: int
) -> None:
    chunks = plan_chunks(rows, chunk_rows)

    held = [
        (segment.block, row)
        for chunk in chunks
        for segment in chunk
        for row in range(segment.start, segment.start + segment.num_rows)
    ]
    assert held == [(block, row) for block, num in enumerate(rows) for row in range(num)]
    sizes = [sum(segment.num_rows for segment in chunk) for chunk in chunks]
    assert all(size == chunk_rows for size in sizes[:-1])
    assert all(size > 0 for size in sizes)
